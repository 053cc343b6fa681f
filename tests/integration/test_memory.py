"""What a step takes of memory, in a process of its own."""

from peak_memory import printed_by


def test_a_step_in_a_million_dimensions_takes_under_one_gibibyte():
    code = """
import jax, ogradient as og
jax.block_until_ready(jax.numpy.ones(3) + 1)
before = peak()
known = og.problems.transport(1_000_000, 1)
algorithm = og.o_langevin(known.problem, 1e-3, correction="hutchinson")
state, info = jax.jit(algorithm.step)(jax.random.key(0), algorithm.init(known.start_off(jax.random.key(1), 1)[0]))
assert int(jax.block_until_ready(info.status)) == 0
print(peak() - before)
"""
    assert 0 < printed_by(code) < 1.0


def test_twenty_thousand_particles_in_blocks_take_under_two_gibibytes():
    code = """
import jax, ogradient as og
known = og.problems.transport(50, 1)
x = known.start_off(jax.random.key(0), 20_000)
algorithm = og.o_svgd(known.problem, 0.1, block_size=256)
state, info = jax.jit(algorithm.step)(jax.random.key(0), algorithm.init(x))
assert int(jax.block_until_ready(info.status)) == 0
print(peak())
"""
    assert 0.1 < printed_by(code) < 2.0
