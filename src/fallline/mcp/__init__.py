"""check, fix, ask and the rules for agents, over the Model Context Protocol. Submitted code is read and never run; torch is never imported.

contract    the objects that tools return
confine     what may be read, how much of it, and for how long
work        what each tool does, in plain Python
server      the tools and resources, with the official SDK (the extra `mcp`)
"""
