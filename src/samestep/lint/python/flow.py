"""What variables hold at each line: the statements of each function walked in order, branches joined.

The walk supposes a machine with several GPUs, since the mistakes are about those: `torch.cuda.is_available()` is true
and `torch.cuda.device_count() > 1`. What it cannot follow is unknown, and rules stay silent about the unknown.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from samestep.lint.python.evaluate import Evaluator
from samestep.lint.python.names import Names, dotted_name
from samestep.lint.python.values import PART, UNKNOWN, State, Value, assume, join

_MOST_PASSES = 4
_ENDS = {"sys.exit", "exit", "quit", "os._exit"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Flow:
    """The values of all expressions of one file."""

    def __init__(self, tree: ast.Module, names: Names) -> None:
        self._evaluator = Evaluator(names, self._assign)
        self._loop_exits: list[list[State]] = []
        self._shared = _names_declared_global(tree)
        self._waiting: list[tuple[ast.AST, State, ast.ClassDef | None]] = []
        final = self._body(tree.body, {})
        stable = self._stable(tree, final or {})
        self._functions(stable)

    def value(self, node: ast.AST | None) -> Value:
        """What the expression holds where it stands; UNKNOWN if that cannot be told."""
        return self._evaluator.known.get(node, UNKNOWN) if node is not None else UNKNOWN

    # ---- functions

    def _functions(self, module_state: State) -> None:
        attributes: dict[ast.ClassDef, State] = {}
        # Constructors first: what they give to self is known in the other methods.
        first = [item for item in self._waiting if getattr(item[0], "name", "") == "__init__"]
        waiting = first + [item for item in self._waiting if item not in first]
        self._waiting = []
        for function, _, owner in waiting:
            entry = dict(module_state)
            if owner is not None and owner in attributes:
                entry.update(attributes[owner])
            final = self._function(function, entry)
            if owner is not None and getattr(function, "name", "") == "__init__":
                attributes[owner] = _kept_attributes(owner, function, final or {})

    def _function(self, function: ast.AST, entry: State) -> State | None:
        assert isinstance(function, _Function | ast.Lambda)
        local = {argument.arg for argument in _arguments(function.args)}
        if isinstance(function, ast.Lambda):
            state = {key: value for key, value in entry.items() if key.split(".")[0] not in local}
            self._evaluator.evaluate(function.body, state)
            return None
        local |= _stored_names(function)
        hidden = local - {"self"}
        state = {key: value for key, value in entry.items() if key.split(".")[0] not in hidden}
        outer, self._waiting = self._waiting, []
        final = self._body(function.body, state)
        inner, self._waiting = self._waiting, outer
        closure = {**state, **self._stable(function, final or {})}
        for nested, _, _ in inner:
            self._function(nested, closure)
        return final

    def _stable(self, scope: ast.AST, final: State) -> State:
        """The variables of a scope that are given a value once, so that functions defined there may rely on it."""
        counts = Counter(_stores(scope))
        return {
            key: value
            for key, value in final.items()
            if counts[key] == 1 and key.split(".")[0] not in self._shared and counts[key.split(".")[0]] <= 1
        }

    # ---- statements

    def _body(self, body: list[ast.stmt], state: State | None, owner: ast.ClassDef | None = None) -> State | None:
        for statement in body:
            if state is None:  # code that is never reached: read it, knowing nothing
                self._statement(statement, {}, owner)
            else:
                state = self._statement(statement, state, owner)
        return state

    def _statement(self, node: ast.stmt, state: State, owner: ast.ClassDef | None) -> State | None:
        if isinstance(node, _Function | ast.ClassDef):
            return self._definition(node, state, owner)
        if isinstance(node, ast.If):
            return self._if(node, state)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._loop(node, state)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            assert isinstance(node, ast.Try) or hasattr(node, "handlers")
            return self._try(node, state)  # type: ignore[arg-type]
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                value = self._evaluator.evaluate(item.context_expr, state)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, Value() if value.kind == "constant" else value, state, None)
            return self._body(node.body, state)
        if isinstance(node, ast.Match):
            self._evaluator.evaluate(node.subject, state)
            return join([self._body(case.body, dict(state)) for case in node.cases] + [state])
        return self._simple(node, state)

    def _simple(self, node: ast.stmt, state: State) -> State | None:
        evaluate = self._evaluator.evaluate
        if isinstance(node, ast.Assign):
            value = evaluate(node.value, state)
            for target in node.targets:
                self._assign(target, value, state, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, evaluate(node.value, state), state, node.value)
        elif isinstance(node, ast.AugAssign):
            evaluate(node.value, state)
            evaluate(node.target, state)
            self._assign(node.target, UNKNOWN, state, None)
        elif isinstance(node, ast.Return | ast.Raise):
            self._children(node, state)
            return None
        elif isinstance(node, ast.Break | ast.Continue):
            if self._loop_exits:
                self._loop_exits[-1].append(dict(state))
            return None
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._assign(target, UNKNOWN, state, None)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                _forget(state, (alias.asname or alias.name).split(".")[0])
        elif isinstance(node, ast.Expr):
            value = evaluate(node.value, state)
            if isinstance(node.value, ast.Call) and dotted_name(node.value.func) in _ENDS:
                return None
            _note_move(node.value, value, state)
        else:
            self._children(node, state)
        return state

    def _children(self, node: ast.AST, state: State) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._evaluator.evaluate(child, state)

    def _definition(self, node: ast.stmt, state: State, owner: ast.ClassDef | None) -> State:
        assert isinstance(node, _Function | ast.ClassDef)
        for decorator in node.decorator_list:
            self._evaluator.evaluate(decorator, state)
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                self._evaluator.evaluate(base, state)
            self._body(node.body, dict(state), node)
        else:
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    self._evaluator.evaluate(default, state)
            self._waiting.append((node, {}, owner))
        _forget(state, node.name)
        return state

    def _if(self, node: ast.If, state: State) -> State | None:
        value = self._evaluator.evaluate(node.test, state)
        taken = self._evaluator.truth(node.test, value)
        body = self._body(node.body, dict(state))
        other = self._body(node.orelse, dict(state))
        if taken is True:
            is_main = dotted_name(getattr(node.test, "left", None)) == "__name__"
            if body is None or is_main:
                return body
            return {key: each if state.get(key) == each else assume(each) for key, each in body.items()}
        if taken is False:
            return other
        return join([body, other])

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State | None:
        entry: State = dict(state)
        leaves: State | None = entry
        for _ in range(_MOST_PASSES):
            before = dict(entry)
            self._loop_exits.append([])
            if isinstance(node, ast.While):
                self._evaluator.evaluate(node.test, before)
            else:
                self._evaluator.bind_loop(node.target, node.iter, before)
            after = self._body(node.body, dict(before))
            exits = self._loop_exits.pop()
            leaves = join([entry, after, *exits])
            assert leaves is not None
            if leaves == entry:
                break
            entry = leaves
        return self._body(node.orelse, dict(entry)) or entry

    def _try(self, node: ast.Try, state: State) -> State | None:
        before = dict(state)
        body = self._body(node.body, dict(state))
        in_handler = join([before, body]) or before
        ends = [self._body(node.orelse, dict(body)) if body is not None else None]
        for handler in node.handlers:
            entry = dict(in_handler)
            if handler.name:
                _forget(entry, handler.name)
            if handler.type is not None:
                self._evaluator.evaluate(handler.type, entry)
            ends.append(self._body(handler.body, entry))
        end = join(ends)
        if not node.finalbody:
            return end
        after = self._body(node.finalbody, dict(end if end is not None else in_handler))
        return after if end is not None else None

    # ---- assignment

    def _assign(self, target: ast.expr, value: Value, state: State, source: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, value, state, source)
            return
        if isinstance(target, ast.Starred):
            self._assign(target.value, UNKNOWN, state, None)
            return
        if isinstance(target, ast.Subscript):
            self._evaluator.evaluate(target.value, state)
            self._evaluator.evaluate(target.slice, state)
            changed = dotted_name(target.value)
            if state.get(changed, UNKNOWN).kind == "constant":
                del state[changed]
            return
        key = dotted_name(target)
        if not key:
            return
        _forget(state, key)
        if value != UNKNOWN:
            state[key] = value
        self._evaluator.known[target] = value

    def _unpack(self, target: ast.Tuple | ast.List, value: Value, state: State, source: ast.expr | None) -> None:
        pieces: list[Value]
        if isinstance(source, ast.Tuple | ast.List) and len(source.elts) == len(target.elts):
            pieces = [self._evaluator.known.get(each, UNKNOWN) for each in source.elts]
        elif value.kind == "batch":
            pieces = [Value("batch", data=PART)] * len(target.elts)
        elif value.kind == "output":
            pieces = [value] * len(target.elts)
        else:
            pieces = [UNKNOWN] * len(target.elts)
        for each, piece in zip(target.elts, pieces, strict=True):
            self._assign(each, piece, state, None)


def _note_move(node: ast.expr, value: Value, state: State) -> None:
    """`model.cuda()` as a statement: only a module is moved in place, so `model` is one."""
    if value.kind == "module" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        key = dotted_name(node.func.value)
        if key:
            state[key] = value


def _forget(state: State, key: str) -> None:
    for each in [each for each in state if each == key or each.startswith(key + ".")]:
        del state[each]


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            yield extra


def _in_scope(scope: ast.AST) -> Iterator[ast.AST]:
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _stores(scope: ast.AST) -> Iterator[str]:
    for node in _in_scope(scope):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield dotted_name(node)
        elif isinstance(node, _Function | ast.ClassDef):
            yield node.name


def _stored_names(function: ast.AST) -> set[str]:
    return {name for name in _stores(function) if "." not in name}


def _names_declared_global(tree: ast.AST) -> set[str]:
    declared = (node for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal))
    return {name for node in declared for name in node.names}


def _kept_attributes(owner: ast.ClassDef, constructor: ast.AST, final: State) -> State:
    """What the constructor leaves in `self.x`, without what other methods store there."""
    elsewhere: set[str] = set()
    for method in owner.body:
        if method is not constructor:
            elsewhere |= {
                dotted_name(node)
                for node in ast.walk(method)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
            }
    return {key: value for key, value in final.items() if key.startswith("self.") and key not in elsewhere}
