"""The nodes below a node are the same whether they are looked up or walked, and come in one order."""

from __future__ import annotations

import ast

from fallline.syntax import Module, Source
from fallline.syntax.index import children, index_of
from fallline.syntax.nodes import below, walk, written

TEXT = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x, *, scale: float = 1.0):
        y = {"a": x + 1, **self.more(x)}
        return [f(v)[0] if v else -scale for v in y.values() if v is not None]

def train(net, data):
    for batch in data:
        with torch.no_grad() as off, other():
            net(batch).sum().backward()
    else:
        print(f"{net!r:>{10}}")
"""


def parsed() -> Module:
    source = Source.from_bytes("a.py", TEXT.encode())
    return Module(source, source.parse())


def walked(node: ast.AST) -> list[ast.AST]:
    return [node, *(n for child in children(node) for n in walked(child))]


def test_looked_up_is_what_is_walked() -> None:
    module = parsed()
    for node in walked(module.tree):
        assert walk(node) == walked(node)
        for kinds in ((ast.Name,), (ast.Call, ast.Name), (ast.expr,), (ast.stmt, ast.arg)):
            assert below(node, *kinds) == [n for n in walked(node) if isinstance(n, kinds)]


def test_a_tree_without_an_index_is_walked_in_the_same_order() -> None:
    module = parsed()
    apart = ast.parse(TEXT)
    assert index_of(apart) is None
    assert list(map(ast.dump, walk(apart))) == list(map(ast.dump, walk(module.tree)))
    assert list(map(ast.dump, below(apart, ast.Call))) == [
        ast.dump(call) for call in below(module.tree, ast.Call)
    ]


def test_a_node_made_by_hand_is_walked_into_the_tree() -> None:
    module = parsed()
    call = below(module.tree, ast.Call)[0]
    made = ast.Expr(value=call)
    assert walk(made) == [made, *walk(call)]


def test_a_released_tree_keeps_no_links_upwards_and_can_still_be_walked() -> None:
    module = parsed()
    before = walk(module.tree)
    module.index.release()
    assert index_of(module.tree) is None
    assert "index" not in vars(module.tree)
    assert all(vars(n)["parent"] is None for n in before)
    assert walk(module.tree) == before


def test_each_name_with_the_innermost_function_around_it() -> None:
    module = parsed()
    scopes = (ast.FunctionDef, ast.Lambda, ast.ClassDef)
    for kind in (ast.Name, ast.arg):
        swept = list(module.index.scoped(module.all(kind), scopes))
        assert swept == [(n, module.enclosing(n, *scopes)) for n in module.all(kind)]
        assert len(swept) > 4


def test_nodes_of_a_list_that_are_in_a_piece_of_code() -> None:
    module = parsed()
    calls = module.all(ast.Call)
    for node in walked(module.tree):
        assert module.index.inside(node, calls) == below(node, ast.Call)


def test_calls_by_last_name_come_in_source_order() -> None:
    source = Source.from_bytes("a.py", b"b.log(a(1))\nlog(2)\nc.a(3)\nd[0](4)\ntorch.log(5)\n")
    module = Module(source, source.parse())
    named = module.calls_named({"log", "a"}.__contains__)
    assert [ast.unparse(c.func) for c in named] == ["b.log", "a", "log", "c.a", "torch.log"]
    assert [c.lineno for c in module.method_calls("log")] == [1, 5]
    assert [c.lineno for c in module.calls_by_last_name[""]] == [4]


def test_an_expression_is_written_as_ast_writes_it() -> None:
    for text in ("a", "self.model.encoder", "a[0].b", "f(x).y", "(1).real", "(a + b).c"):
        node = ast.parse(text, mode="eval").body
        assert written(node) == ast.unparse(node)


def test_links_that_others_put_on_their_trees_are_not_ours() -> None:
    tree = ast.parse("f(x)")
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    call = below(tree, ast.Call)[0]
    assert index_of(call) is None
    assert [n.id for n in below(call, ast.Name)] == ["f", "x"]
