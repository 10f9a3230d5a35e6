/**
 * The equation of attention, computed in float64 from the inputs that a trace with `queries` contains:
 *
 *     e = score(q, k)        a = factor · select(e + bias | mask)        c = Σ_j a_j v_j
 *
 * The computation of one row (a step and a head) returns its weights and its operations, one card each.
 */
import { addScaled, at, atMost, cached, decodeArray, Matrix, splitMatrices, type NDArray } from "./arrays.js";
import type { AttentionEntry, Mechanism, Part } from "./trace.js";

/** What an operation computes: over the slots (one number per key), over features, or a single number. */
export type Axis = "slots" | "features" | "scalar";

export interface Operation {
  title: string;
  /** The formula, as text that `math.ts` turns into MathML. */
  formula: string;
  note: string;
  axis: Axis;
  values: Float64Array;
  /** Values of several slots for features, such as the keys: one row for each slot. */
  table?: Matrix;
}

/** Changes of the equation that are computed in the page. The model is not asked. */
export interface Toggles {
  scaling: boolean;
  temperature: number;
  masked: readonly number[];
  hard: boolean;
}

export const UNCHANGED: Toggles = { scaling: true, temperature: 1, masked: [], hard: false };

export interface Row {
  weights: Float64Array;
  operations: Operation[];
}

type Vector = Float64Array;

/** The inputs of one head, decoded. */
class HeadInputs {
  readonly query: Matrix;
  readonly key: Matrix;
  readonly value: Matrix | null;

  constructor(
    readonly entry: AttentionEntry,
    readonly mechanism: Mechanism,
    readonly head: number,
  ) {
    this.query = this.splitHead(matrixOf(this.input("query")));
    this.key = this.splitHead(matrixOf(this.input("key")));
    this.value = this.has("value") ? this.splitHead(matrixOf(this.input("value"))) : null;
  }

  input(name: string): NDArray {
    const array = this.entry.inputs?.[name];
    if (!array) throw new Error(`The trace does not contain the array ${name} of ${this.entry.name}.`);
    return decodeArray(array);
  }

  has(name: string): boolean {
    return this.entry.inputs?.[name] !== undefined;
  }

  parameter(name: string): NDArray {
    const array = this.mechanism.parameters?.[name];
    if (!array) throw new Error(`The trace does not contain the parameter ${name} of ${this.entry.name}.`);
    return decodeArray(array);
  }

  /** The matrix of this head. */
  matrix(name: string): Matrix {
    return atMost(splitMatrices(this.parameter(name)), this.head);
  }

  /** An input after its projection, which the score contains: the part of this head. */
  project(name: "query" | "key" | "value"): Matrix {
    return this.splitHead(projectRows(matrixOf(this.input(name)), matrixOf(this.parameter(`score.to_${name}.weight`))));
  }

  /** The columns of this head. Inputs that the score projects may have any width, and are split after the projection. */
  splitHead(matrix: Matrix): Matrix {
    const width = Math.floor(matrix.columns / this.mechanism.heads);
    return columnsOf(matrix, this.head * width, (this.head + 1) * width);
  }

  /** The row of a step, of an array heads × queries × keys or queries × keys. */
  row(name: string, step: number): Vector {
    return atMost(splitMatrices(this.input(name)), this.head).row(step);
  }
}

const matrixOf = (array: NDArray): Matrix => at(splitMatrices(array), 0);

/** Return some columns of a matrix. */
const columnsOf = (matrix: Matrix, start: number, end: number): Matrix =>
  Matrix.fromRows(matrix.rows, end - start, (row) => matrix.row(row).subarray(start, end));

const dot = (left: Vector, right: Vector): number => {
  let sum = 0;
  for (let index = 0; index < left.length; index++) sum += (left[index] ?? NaN) * (right[index] ?? NaN);
  return sum;
};
const norm = (vector: Vector): number => Math.sqrt(dot(vector, vector));
const apply = (matrix: Matrix, vector: Vector): Vector =>
  Float64Array.from({ length: matrix.rows }, (_, row) => dot(matrix.row(row), vector));
const perSlot = (count: number, compute: (slot: number) => number): Vector =>
  Float64Array.from({ length: count }, (_, slot) => compute(slot));
const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

/** Apply a matrix to every row. Cached, because all steps use the same keys. */
const projections = cached((rows: Matrix) => cached((matrix: Matrix) => Matrix.fromRows(rows.rows, matrix.rows, (row) => apply(matrix, rows.row(row)))));
const projectRows = (rows: Matrix, matrix: Matrix): Matrix => projections(rows)(matrix);

/** The columns of W [k_j; q] for the keys, and those for the query. */
const splitConcat = cached((both: Matrix) =>
  cached((keys: Matrix) => [columnsOf(both, 0, keys.columns), columnsOf(both, keys.columns, both.columns)] as const),
);

interface Scored {
  scores: Vector;
  operations: Operation[];
}

const slots = (title: string, formula: string, values: Vector, note = ""): Operation => ({
  title,
  formula,
  note,
  axis: "slots",
  values,
});
const features = (title: string, formula: string, values: Vector, note = ""): Operation => ({
  title,
  formula,
  note,
  axis: "features",
  values,
});
const scalar = (title: string, formula: string, value: number, note = ""): Operation => ({
  title,
  formula,
  note,
  axis: "scalar",
  values: Float64Array.of(value),
});
const table = (title: string, formula: string, values: Matrix, note = ""): Operation => ({
  title,
  formula,
  note,
  axis: "features",
  values: new Float64Array(),
  table: values,
});

const showQuery = (query: Vector): Operation => features("Query", "q", query, "What is asked for at this step.");
const showKeys = (keys: Matrix): Operation => table("Keys", "k_j", keys, "What each slot offers, one row per slot.");

type ScoreEquation = (inputs: HeadInputs, step: number, toggles: Toggles) => Scored;

function scoreProduct(query: Vector, keys: Matrix, scaled: boolean, toggles: Toggles): Scored {
  const products = perSlot(keys.rows, (slot) => dot(query, keys.row(slot)));
  const operations = [slots("Dot products", "q · k_j", products, "Large where query and key point in the same direction.")];
  if (!scaled) return { scores: products, operations };
  if (!toggles.scaling) {
    operations.push(slots("Scale (off)", "e_j = q · k_j", products, "Without the division, the softmax is sharper."));
    return { scores: products, operations };
  }
  const root = Math.sqrt(query.length);
  const scores = products.map((value) => value / root);
  operations.push(slots("Scale", "e_j = {q · k_j} / √{d}", scores, `d = ${query.length}, so √d = ${root.toFixed(3)}.`));
  return { scores, operations };
}

const scoreDot: ScoreEquation = (inputs, step, toggles) => {
  const query = inputs.query.row(step);
  const product = scoreProduct(query, inputs.key, inputs.mechanism.score.kind === "scaled_dot", toggles);
  return { ...product, operations: [showQuery(query), showKeys(inputs.key), ...product.operations] };
};

function scoreHidden(query: Vector, keys: Matrix, v: Vector, extra: Matrix | null): Scored {
  const hidden = new Matrix(keys.rows, query.length).map(
    (_, slot, unit) => at(query, unit) + keys.at(slot, unit) + (extra ? extra.at(slot, unit) : 0),
  );
  const activated = hidden.map(Math.tanh);
  const scores = perSlot(keys.rows, (slot) => dot(v, activated.row(slot)));
  const inner = extra ? "W q + U k_j + V f_j" : "W q + U k_j";
  return {
    scores,
    operations: [
      table("Sum", inner, hidden, "One row per slot."),
      table("Hyperbolic tangent", `tanh({${inner}})`, activated, "Each unit lies between −1 and 1."),
      slots("Scores", `e_j = v · tanh({${inner}})`, scores, "The weights v combine the units to one score."),
    ],
  };
}

const scoreAdditive: ScoreEquation = (inputs, step) => {
  const query = inputs.query.row(step);
  const projected = apply(inputs.matrix("score.query.weight"), query);
  const keys = projectRows(inputs.key, inputs.matrix("score.key.weight"));
  const location = inputs.has("past") ? convolvePast(inputs, step) : null;
  const hidden = scoreHidden(projected, keys, vectorOf(inputs, "score.v"), location?.place ?? null);
  return {
    scores: hidden.scores,
    operations: [
      showQuery(query),
      showKeys(inputs.key),
      features("Projected query", "W q", projected),
      table("Projected keys", "U k_j", keys, "One row per slot."),
      ...(location?.operations ?? []),
      ...hidden.operations,
    ],
  };
};

function vectorOf(inputs: HeadInputs, name: string): Vector {
  const { shape, data } = inputs.parameter(name);
  const width = at(shape, shape.length - 1);
  return data.subarray(inputs.head * width, (inputs.head + 1) * width);
}

/** V (F ∗ a₋): a convolution over the previous weights, with zeros outside. */
function convolvePast(inputs: HeadInputs, step: number): { place: Matrix; operations: Operation[] } {
  const past = inputs.row("past", step);
  const filters = inputs.parameter("score.convolution.weight");
  const [count, width] = [at(filters.shape, 0), at(filters.shape, 2)];
  const reach = Math.floor(width / 2);
  const convolved = new Matrix(past.length, count).map((_, slot, filter) => {
    let sum = 0;
    for (let offset = 0; offset < width; offset++) {
      sum += (past[slot + offset - reach] ?? 0) * at(filters.data, filter * width + offset);
    }
    return sum;
  });
  const place = projectRows(convolved, inputs.matrix("score.place.weight"));
  return {
    place,
    operations: [
      slots("Previous weights", "a_{t−1}", past, "The weights of the previous step, or the sum of all previous steps."),
      table("Location features", "f = F ∗ a_{t−1}", convolved, "A convolution over the previous weights."),
      table("Projected features", "V f_j", place),
    ],
  };
}

const SCORES: Record<string, ScoreEquation> = {
  dot: scoreDot,
  scaled_dot: scoreDot,
  general: (inputs, step) => {
    const query = inputs.query.row(step);
    const keys = projectRows(inputs.key, inputs.matrix("score.key.weight"));
    const scores = perSlot(keys.rows, (slot) => dot(query, keys.row(slot)));
    return {
      scores,
      operations: [
        showQuery(query),
        showKeys(inputs.key),
        table("Projected keys", "W k_j", keys, "W maps keys to the space of queries."),
        slots("Scores", "e_j = q · W k_j", scores),
      ],
    };
  },
  cosine: (inputs, step) => {
    const query = inputs.query.row(step);
    const length = norm(query);
    const lengths = perSlot(inputs.key.rows, (slot) => norm(inputs.key.row(slot)));
    const sharpening = inputs.parameter("score.log_sharpening").data;
    const beta = Math.exp(atMost(sharpening, inputs.head));
    const cosines = lengths.map((keyLength, slot) => dot(query, inputs.key.row(slot)) / (length * keyLength));
    const scores = cosines.map((value) => beta * value);
    return {
      scores,
      operations: [
        showQuery(query),
        showKeys(inputs.key),
        scalar("Norm of the query", "‖q‖", length),
        slots("Norms of the keys", "‖k_j‖", lengths),
        slots("Cosines", "cos(q, k_j) = {q · k_j} / {‖q‖ ‖k_j‖}", cosines, "Between −1 and 1: only the angle counts."),
        scalar("Sharpening", "β = exp(b)", beta, "Learned. Large values make the weights sharper."),
        slots("Scores", "e_j = β cos(q, k_j)", scores),
      ],
    };
  },
  additive: scoreAdditive,
  location_aware: scoreAdditive,
  concat: (inputs, step) => {
    const query = inputs.query.row(step);
    const [forKeys, forQuery] = splitConcat(inputs.matrix("score.both.weight"))(inputs.key);
    const keys = projectRows(inputs.key, forKeys);
    const projected = apply(forQuery, query);
    const hidden = keys.map((value, _, unit) => at(projected, unit) + value);
    const activated = hidden.map(Math.tanh);
    const v = vectorOf(inputs, "score.v");
    const scores = perSlot(keys.rows, (slot) => dot(v, activated.row(slot)));
    return {
      scores,
      operations: [
        showQuery(query),
        showKeys(inputs.key),
        table("Projection of key and query", "W [k_j; q]", hidden, "One row per slot."),
        table("Hyperbolic tangent", "tanh(W [k_j; q])", activated),
        slots("Scores", "e_j = v · tanh(W [k_j; q])", scores),
      ],
    };
  },
  location: (inputs, step) => {
    const query = inputs.query.row(step);
    const positions = apply(inputs.matrix("score.positions.weight"), query);
    const scores = positions.slice(0, inputs.key.rows);
    return {
      scores,
      operations: [
        showQuery(query),
        slots("Scores", "e_j = (W q)_j", scores, "The query alone predicts a score for each position. Keys are not read."),
      ],
    };
  },
  projected: (inputs, step, toggles) => {
    const query = inputs.project("query").row(step);
    const keys = inputs.project("key");
    const product = scoreProduct(query, keys, inputs.mechanism.score["scaled"] !== false, toggles);
    return {
      scores: product.scores,
      operations: [
        features("Projected query", "W_Q q", query, "The part of this head."),
        table("Projected keys", "W_K k_j", keys, "The part of this head, one row per slot."),
        ...product.operations,
      ],
    };
  },
};

interface Scoped {
  visible: boolean[];
  bias: Vector;
  factor: Vector;
  operations: Operation[];
}

type ScopeEquation = (scope: Part, inputs: HeadInputs, step: number, prefix: string) => Scoped;

function see(inputs: HeadInputs, isVisible: (slot: number) => boolean): Scoped {
  const count = inputs.key.rows;
  return {
    visible: Array.from({ length: count }, (_, slot) => isVisible(slot)),
    bias: new Float64Array(count),
    factor: new Float64Array(count).fill(1),
    operations: [],
  };
}

const positionOf = (inputs: HeadInputs, step: number): number => at(inputs.input("position").data, step);

const SCOPES: Record<string, ScopeEquation> = {
  global: (_scope, inputs) => see(inputs, () => true),
  // Slot j is that of query j. An encoder that reads backward counts positions from the end of the source.
  causal: (scope, inputs, step) => {
    const position = positionOf(inputs, step) - (scope["strict"] ? 1 : 0);
    return see(inputs, (slot) => positionOf(inputs, slot) <= position);
  },
  local_m: (scope, inputs, step) => {
    const position = positionOf(inputs, step);
    const scoped = see(inputs, (slot) => Math.abs(slot - position) <= Number(scope["window"]));
    scoped.operations.push(scalar("Center of the window", "p = t", position, `The window reaches ${scope["window"]} slots to each side.`));
    return scoped;
  },
  local_p: (scope, inputs, step, prefix) => {
    const query = matrixOf(inputs.input("query")).row(step);
    const inner = apply(matrixOf(inputs.parameter(`${prefix}inner.weight`)), query).map(Math.tanh);
    const outer = inputs.parameter(`${prefix}outer.weight`).data;
    const count = inputs.key.rows;
    const scaled = scope["scaled"] === true;
    const position = count * sigmoid(dot(outer, inner) / (scaled ? Math.sqrt(query.length) : 1));
    const window = Number(scope["window"]);
    const scoped = see(inputs, (slot) => Math.abs(slot - position) <= window);
    const gauss = perSlot(count, (slot) => -((slot - position) ** 2) / (2 * (window / 2) ** 2));
    const normalize = scope["normalize"] !== false;
    if (normalize) scoped.bias = gauss;
    else scoped.factor = gauss.map(Math.exp);
    scoped.operations.push(
      scalar(
        "Predicted position",
        scaled ? "p = S sigmoid({w · tanh(W q)} / √{d})" : "p = S sigmoid(w · tanh(W q))",
        position,
        `S = ${count} slots; counted from 0.`,
      ),
      normalize
        ? slots("Logarithm of the Gaussian", "g_j = −{(j − p)²} / {2σ²}", gauss, `σ = ${window / 2}. It is added to the scores.`)
        : slots("Gaussian", "g_j = exp(−{(j − p)²} / {2σ²})", scoped.factor, `σ = ${window / 2}. It is multiplied with the weights.`),
    );
    return scoped;
  },
  all_of: (scope, inputs, step, prefix) =>
    (scope["scopes"] as Part[]).reduce<Scoped>(
      (scoped, part, index) => {
        const other = computeScope(part, inputs, step, `${prefix}scopes.${index}.`);
        return {
          visible: scoped.visible.map((value, slot) => value && at(other.visible, slot)),
          bias: scoped.bias.map((value, slot) => value + at(other.bias, slot)),
          factor: scoped.factor.map((value, slot) => value * at(other.factor, slot)),
          operations: [...scoped.operations, ...other.operations],
        };
      },
      see(inputs, () => true),
    ),
};

/** Compute a scope. That of a plugin is read from the trace: its mask, bias and factor. */
function computeScope(scope: Part, inputs: HeadInputs, step: number, prefix: string): Scoped {
  const compute = SCOPES[scope.kind];
  if (compute) return compute(scope, inputs, step, prefix);
  const scoped = see(inputs, () => true);
  if (inputs.has("bias")) scoped.bias = inputs.row("bias", step);
  if (inputs.has("factor")) scoped.factor = inputs.row("factor", step);
  return scoped;
}

interface Selected {
  weights: Vector;
  operations: Operation[];
}

type SelectEquation = (scores: Vector, inputs: HeadInputs, step: number) => Selected;

const maximum = (scores: Vector): number => scores.reduce((best, value) => Math.max(best, value), -Infinity);

export function softmax(scores: Vector): Vector {
  const largest = maximum(scores);
  if (largest === -Infinity) return new Float64Array(scores.length);
  const exponentials = scores.map((value) => Math.exp(value - largest));
  const sum = exponentials.reduce((total, value) => total + value, 0);
  return exponentials.map((value) => value / sum);
}

/** Return τ with mass(τ) = 1, by bisection. The mass decreases with τ. */
function findThreshold(mass: (threshold: number) => number, low: number, high: number): number {
  for (let round = 0; round < 100; round++) {
    const middle = (low + high) / 2;
    if (mass(middle) > 1) low = middle;
    else high = middle;
  }
  return low;
}

const positive = (value: number): number => Math.max(value, 0);
const total = (values: Vector): number => values.reduce((sum, value) => sum + value, 0);

const selectSoftmax: SelectEquation = (scores) => {
  const largest = maximum(scores);
  const exponentials = scores.map((value) => Math.exp(value - largest));
  return {
    weights: softmax(scores),
    operations: [
      slots("Exponentials", "exp(e_j − m)", exponentials, `m = ${largest.toFixed(3)}, the largest score: it cancels, and avoids overflow.`),
      scalar("Sum", "Z = ∑_i exp(e_i − m)", total(exponentials)),
      slots("Quotients", "a_j = {exp(e_j − m)} / {Z}", softmax(scores), "The weights are positive and sum to 1."),
    ],
  };
};

const selectLargest: SelectEquation = (scores) => {
  const best = scores.indexOf(maximum(scores));
  const weights = perSlot(scores.length, (slot) => (slot === best ? 1 : 0));
  const note = "In evaluation, the slot with the largest score is taken. In training, a slot is sampled.";
  return { weights, operations: [slots("Largest score", "a_j = [j = argmax_i e_i]", weights, note)] };
};

const SELECTIONS: Record<string, SelectEquation> = {
  softmax: selectSoftmax,
  hard_exact: selectSoftmax,
  hard: selectLargest,
  straight_through: selectLargest,
  sparsemax: (scores) => {
    const largest = maximum(scores);
    const threshold = findThreshold((tau) => total(scores.map((value) => positive(value - tau))), largest - 1, largest);
    const weights = scores.map((value) => positive(value - threshold));
    return {
      weights,
      operations: [
        scalar("Threshold", "τ", threshold, "Chosen so that the weights sum to 1."),
        slots("Weights", "a_j = max(e_j − τ, 0)", weights, "Scores below the threshold have a weight of exactly 0."),
      ],
    };
  },
  entmax15: (scores) => {
    const halves = scores.map((value) => value / 2);
    const largest = maximum(halves);
    const threshold = findThreshold((tau) => total(halves.map((value) => positive(value - tau) ** 2)), largest - 1, largest);
    const weights = halves.map((value) => positive(value - threshold) ** 2);
    return {
      weights,
      operations: [
        scalar("Threshold", "τ", threshold, "Chosen so that the weights sum to 1."),
        slots("Weights", "a_j = max(e_j / 2 − τ, 0)²", weights, "Scores below the threshold have a weight of exactly 0."),
      ],
    };
  },
  hard_monotonic: (scores, inputs, step) => {
    const belief = inputs.row("belief", step);
    const weights = new Float64Array(scores.length);
    belief.forEach((probability, start) => {
      addScaled(weights.subarray(start), softmax(scores.subarray(start)), probability);
    });
    return {
      weights,
      operations: [
        slots("Previous position", "β_i", belief, "The probability of each slot to be the previous position."),
        slots("Weights", "a_j = ∑_{i ≤ j} β_i {exp(e_j)} / {∑_{k ≥ i} exp(e_k)}", weights, "The position never moves back."),
      ],
    };
  },
};

/** Whether the page knows the equations of this mechanism. Those of plugins are not known. */
export function knowsEquation(mechanism: Mechanism): boolean {
  return mechanism.score.kind in SCORES && mechanism.select.kind in SELECTIONS;
}

/** Compute the weights of one step and head, and the operations that lead to them. */
export function computeRow(entry: AttentionEntry, mechanism: Mechanism, head: number, step: number, toggles: Toggles): Row {
  return computeStep(new HeadInputs(entry, mechanism, head), step, toggles);
}

function computeStep(inputs: HeadInputs, step: number, toggles: Toggles): Row {
  const { mechanism } = inputs;
  const [score, select] = [SCORES[mechanism.score.kind], toggles.hard ? selectLargest : SELECTIONS[mechanism.select.kind]];
  if (!score || !select) throw new Error(`The page does not know the equation ${mechanism.equation}.`);
  const scored = score(inputs, step, toggles);
  const scoped = computeScope(mechanism.scope, inputs, step, "scope.");
  const recorded = inputs.row("mask", step);
  const masked = new Set(toggles.masked);
  const visible = scoped.visible.map((value, slot) => value && at(recorded, slot) > 0 && !masked.has(slot));
  const biased = scored.scores.map((value, slot) => (visible[slot] ? (value + at(scoped.bias, slot)) / toggles.temperature : -Infinity));
  const operations = [...scored.operations, ...scoped.operations, showMask(biased, mechanism.scope, toggles)];
  const isEmpty = maximum(biased) === -Infinity;
  const selected = isEmpty ? { weights: new Float64Array(biased.length), operations: [] } : select(biased, inputs, step);
  operations.push(...selected.operations);
  let weights = selected.weights;
  if (scoped.factor.some((value) => value !== 1)) {
    weights = weights.map((value, slot) => value * at(scoped.factor, slot));
    operations.push(slots("Multiply with the Gaussian", "a_j g_j", weights, "These weights do not sum to 1."));
  }
  operations.push(...sumValues(inputs, weights));
  return { weights, operations };
}

function showMask(biased: Vector, scope: Part, toggles: Toggles): Operation {
  const hidden = biased.filter((value) => value === -Infinity).length;
  const note = hidden ? `${hidden} of ${biased.length} slots are masked: their score is −∞.` : "All slots are visible.";
  const title = toggles.temperature === 1 ? "Mask" : `Mask, and divide by the temperature ${toggles.temperature}`;
  return slots(title, scope.kind === "local_p" ? "e_j + g_j | mask" : "e_j | mask", biased, `Scope: ${scope.kind}. ${note}`);
}

/** c = Σ_j a_j v_j. */
function sumValues(inputs: HeadInputs, weights: Vector): Operation[] {
  const values = inputs.mechanism.score.kind === "projected" && inputs.value ? inputs.project("value") : inputs.value;
  if (!values || values.rows !== weights.length) return [];
  const context = new Float64Array(values.columns);
  weights.forEach((weight, slot) => addScaled(context, values.row(slot), weight));
  return [features("Weighted sum", "c = ∑_j a_j v_j", context, "The context vector: what is read at this step.")];
}

/** Return max |page − model| over all steps and heads of an attention. */
export function checkEquation(entry: AttentionEntry, mechanism: Mechanism): number {
  let largest = 0;
  splitMatrices(decodeArray(entry)).forEach((weights, head) => {
    const inputs = new HeadInputs(entry, mechanism, head);
    for (let step = 0; step < weights.rows; step++) {
      const computed = computeStep(inputs, step, UNCHANGED).weights;
      const recorded = weights.row(step);
      computed.forEach((value, slot) => {
        const difference = Math.abs(value - (recorded[slot] ?? NaN));
        // NaN is the largest difference: a comparison would ignore it.
        largest = Number.isNaN(difference) ? Infinity : Math.max(largest, difference);
      });
    }
  });
  return largest;
}
