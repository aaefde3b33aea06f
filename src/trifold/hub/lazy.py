"""Tensors by name that are made, renamed or changed only when somebody asks for them: one at a time in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor


class Made(Mapping[str, Tensor]):
    """Each group of names with the function that makes its tensors, together and in their order."""

    def __init__(self, makers: Mapping[tuple[str, ...], Callable[[], Sequence[Tensor]]]) -> None:
        self._makers = makers
        self._group_of = {name: group for group in makers for name in group}
        self._last: tuple[tuple[str, ...], dict[str, Tensor]] = ((), {})

    def __getitem__(self, name: str) -> Tensor:
        group = self._group_of[name]
        if group != self._last[0]:  # neighbours are asked for one after the other, and made once
            self._last = group, dict(zip(group, self._makers[group](), strict=True))
        return self._last[1][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group_of)

    def __len__(self) -> int:
        return len(self._group_of)


class Aliased(Mapping[str, Tensor]):
    """Tensors under other names: new name -> the name of the tensor."""

    def __init__(self, tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self._tensors, self._names = tensors, names

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Each(Mapping[str, Tensor]):
    """Every tensor after a function of its name and itself."""

    def __init__(self, tensors: Mapping[str, Tensor], function: Callable[[str, Tensor], Tensor]) -> None:
        self._tensors, self._function = tensors, function

    def __getitem__(self, name: str) -> Tensor:
        return self._function(name, self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
