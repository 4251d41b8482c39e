"""Documents that are derived from the code, so that they cannot drift from it.

    rule_page       one rule, as Markdown
    cli_page        every command and option, as Markdown
    evidence_page   what the experiments measured, with figures, from the record
    specialist_page one specialist: its playbook and its rules
    comparison_page side by side with other tools, from benchmarks/RESULTS.md
    ask_page        what the playbooks and scenarios cover, inside docs/ask.md

`python -m fallline.docs` writes them into `docs/`, and the Agent Skills into `skills/` and the package; with `--check` it fails where they are stale.
"""
