"""`fallline check` behind its options: which files, which rules, what is silenced, and what a fix may change.

    settings     the command line and `[tool.fallline]`
    discovery    paths → files
    reading      files → findings, through the cache
    suppress     `# noqa`, `# fallline: ignore[...]`
    baseline     findings that were there before
    fixing       fixes, made and read again
    outcome      all of it, in order

Modules here are imported one by one: a check of a file that cannot matter must not import the reader.
"""
