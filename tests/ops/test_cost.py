"""Costs as polynomials in the lengths."""

import math

from regard.ops.cost import NO_COST, UNKNOWN_COST, Cost, K, S, T, sum_costs


def test_polynomials_are_added_multiplied_and_evaluated() -> None:
    cost = (2 * S + 3) * (T + 1) + 0.5 * T * T * K
    assert cost == 2 * S * T + 2 * S + 3 * T + 3 + 0.5 * K * T * T
    assert cost(5, 7, 2) == (2 * 5 + 3) * (7 + 1) + 0.5 * 49 * 2
    assert cost - cost == NO_COST
    assert sum_costs([S, T, S]) == 2 * S + T
    assert 0 * S == NO_COST


def test_a_fixed_length_or_beam_is_substituted() -> None:
    cost = 4 * S * T + S * S + K * T
    assert cost.with_source(3) == 13 * T + 9 - T + K * T
    assert cost.with_source(None) == cost
    assert cost.with_beam(5) == 4 * S * T + S * S + 5 * T


def test_formulas_are_readable_and_exact_in_json() -> None:
    cost = 1_048_576 * S + 512 * S * T + 24.5 * T * T + 7 + T
    assert str(cost) == "7 + 1.05 M·S + T + 512·S·T + 24.5·T²"
    assert cost.to_json() == {"S": 1_048_576, "S·T": 512, "T²": 24.5, "1": 7, "T": 1}
    assert str(NO_COST) == "0"
    assert str(S + UNKNOWN_COST) == "unknown"
    assert math.isnan((S + UNKNOWN_COST)(1, 1))


def test_terms_of_degree_2_are_those_of_pairs_of_positions() -> None:
    cost = 3 + S + 2 * T + 5 * S * T + 7 * S * S + 11 * K * T
    assert cost.attention_terms == 5 * S * T + 7 * S * S


def test_a_constant_is_a_cost() -> None:
    assert Cost.constant(3)(100, 100) == 3
    assert Cost.constant(0) == NO_COST
