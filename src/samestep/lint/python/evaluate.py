"""What an expression gives, given what the variables hold."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from samestep.lint.python.names import Names, dotted_name
from samestep.lint.python.values import (
    MAKERS,
    RETURNS_SELF,
    TENSOR_MAKERS,
    TENSOR_METHODS,
    UNKNOWN,
    State,
    Value,
    assume,
    device_of,
)

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_PASSES_ON = {"enumerate", "tqdm", "trange", "iter", "list", "track", "islice", "zip", "progress_bar", "get_iterator"}
_CHANGES_LIST = {"append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"}
_COUNTS = (ast.Gt, ast.GtE, ast.NotEq)
Assign = Callable[[ast.expr, Value, State, "ast.expr | None"], None]


class Evaluator:
    """Evaluates expressions and remembers what each of them gave."""

    def __init__(self, names: Names, assign: Assign) -> None:
        self.known: dict[ast.AST, Value] = {}
        self._names = names
        self._assign = assign

    def evaluate(self, node: ast.expr, state: State) -> Value:
        value = self._evaluate(node, state)
        self.known[node] = value
        return value

    def truth(self, test: ast.expr, value: Value) -> bool | None:
        """Whether a test holds on a machine with several GPUs; None if that cannot be told."""
        if value.kind == "cuda_is_there":
            return True
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.truth(test.operand, self.known.get(test.operand, UNKNOWN))
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = self.known.get(test.left, UNKNOWN), self.known.get(test.comparators[0], UNKNOWN)
            if left.kind == "device_count" and right.whole_number in (0, 1) and isinstance(test.ops[0], _COUNTS):
                return True
            if left.text is not None and right.text is not None and isinstance(test.ops[0], ast.Eq):
                return left.text == right.text
            if dotted_name(test.left) == "__name__" and right.text == "__main__" and isinstance(test.ops[0], ast.Eq):
                return True
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            parts = [self.truth(each, self.known.get(each, UNKNOWN)) for each in test.values]
            return True if all(parts) else False if False in parts else None
        return None

    def bind_loop(self, target: ast.expr, iterated: ast.expr, state: State) -> None:
        """Give a loop's target what the loop iterates over."""
        self.evaluate(iterated, state)
        self._bind(target, iterated, state)

    def _bind(self, target: ast.expr, iterated: ast.expr, state: State) -> None:
        if isinstance(iterated, ast.Call) and iterated.args:
            called = dotted_name(iterated.func).rpartition(".")[2]
            if called == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                self._assign(target.elts[0], UNKNOWN, state, None)
                self._bind(target.elts[1], iterated.args[0], state)
                return
            if called in _PASSES_ON and called not in ("enumerate", "zip"):
                self._bind(target, iterated.args[0], state)
                return
        loops_loader = self.known.get(iterated, UNKNOWN).kind == "loader"
        self._assign(target, Value("batch") if loops_loader else UNKNOWN, state, None)

    def _evaluate(self, node: ast.expr, state: State) -> Value:
        if isinstance(node, ast.Constant):
            return Value("constant", data=node.value)
        if isinstance(node, ast.Name):
            return state.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            inner = self.evaluate(node.value, state)
            held = state.get(dotted_name(node), UNKNOWN)
            if held == UNKNOWN and inner.kind in ("output", "batch"):
                return inner
            return held
        if isinstance(node, ast.List | ast.Tuple):
            values = [self.evaluate(each, state) for each in node.elts]
            if all(value.kind == "constant" for value in values):
                items = [value.data for value in values]
                return Value("constant", data=items if isinstance(node, ast.List) else tuple(items))
            return UNKNOWN
        if isinstance(node, ast.Call):
            return self._call(node, state)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, state)
        if isinstance(node, ast.IfExp):
            return self._if_expression(node, state)
        if isinstance(node, ast.NamedExpr):
            value = self.evaluate(node.value, state)
            self._assign(node.target, value, state, node.value)
            return value
        if isinstance(node, ast.Lambda):
            hidden = {each.arg for each in [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]}
            self.evaluate(node.body, {key: value for key, value in state.items() if key.split(".")[0] not in hidden})
            return UNKNOWN
        if isinstance(node, _COMPREHENSIONS):
            return self._comprehension(node, state)
        return self._operation(node, state)

    def _operation(self, node: ast.expr, state: State) -> Value:
        values = [self.evaluate(child, state) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if isinstance(node, ast.Subscript):
            return self._subscript(values[0], values[1])
        texts = [value.text for value in values]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and None not in texts:
            return Value("constant", data=f"{values[0].text}{values[1].text}")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and values[0].whole_number is not None:
            return Value("constant", data=-values[0].whole_number)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) and values:
            return Value("cuda_is_there") if all(value.kind == "cuda_is_there" for value in values) else UNKNOWN
        if isinstance(node, ast.BinOp) and any(value.kind in ("tensor",) for value in values):
            return Value("tensor")
        return UNKNOWN

    def _subscript(self, base: Value, index: Value) -> Value:
        if base.kind in ("output", "batch"):
            return base
        number = index.whole_number
        if base.kind != "constant" or not isinstance(base.data, list | tuple) or number is None:
            return UNKNOWN
        return Value("constant", data=base.data[number]) if -len(base.data) <= number < len(base.data) else UNKNOWN

    def _joined(self, node: ast.JoinedStr, state: State) -> Value:
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.evaluate(part.value, state)
                if value.kind != "constant" or part.format_spec is not None or part.conversion != -1:
                    text = "\0"
                text += str(value.data)
            else:
                text += str(self.evaluate(part, state).data)
        return UNKNOWN if "\0" in text else Value("constant", data=text)

    def _if_expression(self, node: ast.IfExp, state: State) -> Value:
        test = self.evaluate(node.test, state)
        body, other = self.evaluate(node.body, state), self.evaluate(node.orelse, state)
        taken = self.truth(node.test, test)
        if taken is not None:
            return assume(body) if taken else other
        # `"cuda" if args.cuda else "cpu"`: with several GPUs, the first.
        if device_of(body).startswith("cuda") and device_of(other) == "cpu":
            return body
        return body if body == other else UNKNOWN

    def _comprehension(self, node: _COMPREHENSIONS, state: State) -> Value:
        inner = dict(state)
        for generator in node.generators:
            self.bind_loop(generator.target, generator.iter, inner)
            for test in generator.ifs:
                self.evaluate(test, inner)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            self.evaluate(part, inner)
        return UNKNOWN

    def _call(self, node: ast.Call, state: State) -> Value:
        function = node.func
        receiver = self.evaluate(function.value, state) if isinstance(function, ast.Attribute) else UNKNOWN
        arguments = [self.evaluate(each, state) for each in node.args]
        keywords = {each.arg or "**": self.evaluate(each.value, state) for each in node.keywords}
        name = self._names.qualified(function)
        if name in MAKERS:
            inner = arguments[0] if arguments else keywords.get("module", UNKNOWN)
            return Value(MAKERS[name], node, location=inner.location)
        if name == "torch.device":
            return self._device(arguments, keywords)
        if name in TENSOR_MAKERS:
            return Value("tensor", node)
        if name.startswith("torch.optim.") and name.rpartition(".")[2][:1].isupper() and "lr_scheduler" not in name:
            return Value("optimizer", node)
        if name == "dict" or (not name and dotted_name(function) == "dict"):
            copied = node.args and self._names.qualified(node.args[0]) == "os.environ"
            return Value("environ", node) if copied else UNKNOWN
        if isinstance(function, ast.Attribute):
            return self._method(node, function, receiver, arguments, keywords, state)
        called = state.get(dotted_name(function), UNKNOWN)
        self.known[function] = called
        if called.kind in ("data_parallel", "ddp", "fsdp"):
            return Value("output", node, certain=called.certain)
        return self._builtin(dotted_name(function), arguments) if not name else UNKNOWN

    def _builtin(self, name: str, arguments: list[Value]) -> Value:
        if not arguments or any(value.kind != "constant" for value in arguments):
            return UNKNOWN
        data = [value.data for value in arguments]
        if name == "str" and len(data) == 1:
            return Value("constant", data=str(data[0]))
        if name in ("list", "tuple", "sorted") and len(data) == 1 and isinstance(data[0], list | tuple):
            return Value("constant", data=tuple(data[0]) if name == "tuple" else list(data[0]))
        if name == "range" and all(isinstance(each, int) and abs(each) < 1000 for each in data) and len(data) < 3:
            bounds = [each for each in data if isinstance(each, int)]
            return Value("constant", data=list(range(*bounds)))
        return UNKNOWN

    def _method(
        self,
        node: ast.Call,
        function: ast.Attribute,
        receiver: Value,
        arguments: list[Value],
        keywords: dict[str, Value],
        state: State,
    ) -> Value:
        method, key = function.attr, dotted_name(function.value)
        if method in ("cuda", "to", "cpu", "xpu"):
            return self._moved(node, receiver, key, arguments, keywords, state)
        if method in _CHANGES_LIST and receiver.kind == "constant":
            state.pop(key, None)
            return UNKNOWN
        if method in RETURNS_SELF and receiver.kind in ("data_parallel", "ddp", "fsdp", "module"):
            return receiver
        if method in TENSOR_METHODS and receiver.kind in ("tensor", "batch"):
            return Value("tensor")
        if method == "parse_args" and receiver.kind == "parser":
            return Value("arguments", receiver.call)
        if method == "copy" and self._names.qualified(function.value) == "os.environ":
            return Value("environ", node)
        called = self.known[function] = state.get(dotted_name(function), UNKNOWN)
        if called.kind in ("data_parallel", "ddp", "fsdp"):
            return Value("output", node, certain=called.certain)
        if method == "forward" and receiver.kind in ("data_parallel", "ddp", "fsdp"):
            return Value("output", node, certain=receiver.certain)
        return UNKNOWN

    def _moved(
        self,
        node: ast.Call,
        receiver: Value,
        key: str,
        arguments: list[Value],
        keywords: dict[str, Value],
        state: State,
    ) -> Value:
        assert isinstance(node.func, ast.Attribute)
        target = self._target(node, arguments, keywords)
        if receiver.kind in ("tensor", "batch"):
            return Value("tensor", location=target or "")
        if receiver.kind == "output":
            return receiver
        if target is None:
            return receiver  # a change of dtype
        moved = replace(receiver if receiver.kind != "unknown" else Value("module"), location=target)
        if receiver.kind != "unknown" and key in state:
            state[key] = moved  # a module is moved in place
        return moved

    def _target(self, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]) -> str | None:
        assert isinstance(node.func, ast.Attribute)
        method = node.func.attr
        given = arguments[0] if arguments else keywords.get("device")
        if method == "cpu":
            return "cpu"
        if method == "to":
            if given is None:
                return None
            if node.args and self._names.qualified(node.args[0]).startswith("torch."):
                return None
            return device_of(given)
        if given is None or (given.kind == "constant" and given.data is None):
            return method
        found = device_of(given)
        return found.replace("cuda", method, 1) if found.startswith("cuda:") else found

    def _device(self, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        given = arguments[0] if arguments else keywords.get("type", UNKNOWN)
        index = arguments[1] if len(arguments) > 1 else keywords.get("index")
        location = device_of(given)
        if index is not None:
            number = index.whole_number
            location = f"{location}:{number}" if location and number is not None else ""
        return Value("device", location=location)
