"""The door for editors: a language server over standard input and output.

    project    open documents and the files around them → findings and fixes (knows no protocol)
    worker     a project, read in a process of its own, so that typing never waits for reading
    convert    findings → diagnostics, changes → edits, rules → hovers
    server     the features, debounced

Nothing that is read is run; nothing is written: edits are handed to the editor.
"""
