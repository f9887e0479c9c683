"""An agent with methods, whose types are checked and shown by `hail describe calculator`.

python examples/python/calculator.py
hail call calculator --method divide '{"a": 6, "b": 3}'
"""

from dataclasses import dataclass

import hailwire

hail = hailwire.connect()
calculator = hailwire.Agent("calculator", description="computes")


@dataclass
class Pair:
    a: float
    b: float


@calculator.method
async def add(pair: Pair) -> float:
    """The sum of two numbers."""
    return pair.a + pair.b


@calculator.method
async def divide(pair: Pair) -> float:
    """The quotient of two numbers."""
    if pair.b == 0:
        raise hailwire.HailError("invalid_argument", "nothing can be divided by zero", hint="pass another `b`")
    return pair.a / pair.b


hail.declare(calculator)

if __name__ == "__main__":
    hail.run()
