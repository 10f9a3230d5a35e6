/**
 * The equation of attention, computed in float64 from the inputs that a trace with `queries` contains:
 *
 *     e = score(q, k)        a = factor · select(e + bias | mask)        c = Σ_j a_j v_j
 *
 * The computation of one row (a step and a head) is a list of stages. Each has values for every key.
 */
import { addScaled, at, atMost, cached, decodeArray, Matrix, splitMatrices, type NDArray } from "./arrays.js";
import type { AttentionEntry, Mechanism, Part } from "./trace.js";

type Vector = Float64Array;

/** A number or a vector that all keys share. Formulas are texts that `math.ts` turns into MathML. */
export interface Term {
  formula: string;
  values: Vector;
}

export interface Stage {
  name: string;
  formula: string;
  note: string;
  /** Keys × units. */
  values: Matrix;
  /** What enters the stage besides the stage before. */
  inputs: readonly Term[];
  /** The sum over all keys. */
  total: Term | null;
  /** Whether the values are read from the model, not computed from the stage before. */
  isRead: boolean;
  /** Whether the values are shares, from 0 to 1. */
  isShare: boolean;
  /** The value at any position, if the values are those of a function over positions. */
  curve: ((position: number) => number) | null;
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
  stages: Stage[];
  weights: Vector;
  /** The weighted sum; null if the trace does not contain the values. */
  context: Vector | null;
}

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

/** Each head is decoded once, and its keys are projected once for all steps. */
const decodedHeads = cached((_entry: AttentionEntry) => new Map<number, HeadInputs>());

function readHead(entry: AttentionEntry, mechanism: Mechanism, head: number): HeadInputs {
  const inputs = decodedHeads(entry).get(head) ?? new HeadInputs(entry, mechanism, head);
  decodedHeads(entry).set(head, inputs);
  return inputs;
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

const stage = (name: string, formula: string, values: Matrix | Vector, details: Partial<Stage> = {}): Stage => ({
  name,
  formula,
  note: "",
  inputs: [],
  total: null,
  isRead: false,
  isShare: false,
  curve: null,
  ...details,
  values: values instanceof Matrix ? values : new Matrix(values.length, 1, values),
});

const number = (formula: string, value: number): Term => ({ formula, values: Float64Array.of(value) });
const last = (stages: readonly Stage[]): Stage => at(stages, stages.length - 1);

/** The stages of a score. The values of the last one are the scores. */
type ScoreEquation = (inputs: HeadInputs, step: number, toggles: Toggles) => Stage[];

const readQuery = (inputs: HeadInputs, step: number): Term => ({ formula: "q", values: inputs.query.row(step) });
const readKeys = (inputs: HeadInputs): Stage => stage("Key", "k_j", inputs.key, { isRead: true, note: "The keys, as the model computes them." });

function multiply(query: Term, keys: Stage[], isScaled: boolean, toggles: Toggles): Stage[] {
  const { formula, values } = last(keys);
  const products = perSlot(values.rows, (slot) => dot(query.values, values.row(slot)));
  const [inner, width] = [`${query.formula} · ${formula}`, query.values.length];
  const details = { inputs: [query], note: "Large where query and key point in the same direction." };
  if (!isScaled) return [...keys, stage("Score", `e_j = ${inner}`, products, details)];
  const score = toggles.scaling
    ? stage("Score", `e_j = {${inner}} / √{d}`, products.map((value) => value / Math.sqrt(width)), { note: `d = ${width}, so √d = ${Math.sqrt(width).toFixed(3)}.` })
    : stage("Score", `e_j = ${inner}`, products, { note: "Without the division by √d, the softmax is sharper." });
  return [...keys, stage("Dot product", inner, products, details), score];
}

const scoreDot: ScoreEquation = (inputs, step, toggles) =>
  multiply(readQuery(inputs, step), [readKeys(inputs)], inputs.mechanism.score.kind === "scaled_dot", toggles);

/** v · tanh(hidden), after the stages that lead to the hidden units. */
function activate(inputs: HeadInputs, before: Stage[], hidden: Stage): Stage[] {
  const { shape, data } = inputs.parameter("score.v");
  const width = at(shape, shape.length - 1);
  const v = data.subarray(inputs.head * width, (inputs.head + 1) * width);
  const activated = hidden.values.map(Math.tanh);
  return [
    ...before,
    hidden,
    stage("tanh", `tanh(${hidden.formula})`, activated, { note: "Each unit lies between −1 and 1." }),
    stage("Score", `e_j = v · tanh(${hidden.formula})`, perSlot(activated.rows, (slot) => dot(v, activated.row(slot))), {
      inputs: [{ formula: "v", values: v }],
      note: "The learned weights v combine the units to one score.",
    }),
  ];
}

const scoreAdditive: ScoreEquation = (inputs, step) => {
  const query = readQuery(inputs, step);
  const projected = { formula: "W q", values: apply(inputs.matrix("score.query.weight"), query.values) };
  const location = inputs.has("past") ? convolvePast(inputs, step) : [];
  const keys = stage("Projection", "U k_j", projectRows(inputs.key, inputs.matrix("score.key.weight")));
  const parts = [keys, ...location.slice(-1)];
  const sum = keys.values.map((_, slot, unit) => parts.reduce((total, part) => total + part.values.at(slot, unit), at(projected.values, unit)));
  const formula = [projected, ...parts].map((part) => part.formula).join(" + ");
  return activate(inputs, [...location, readKeys(inputs), keys], stage("Sum", formula, sum, { inputs: [query, projected] }));
};

/** V (F ∗ a₋): a convolution over the previous weights, with zeros outside. */
function convolvePast(inputs: HeadInputs, step: number): Stage[] {
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
  return [
    stage("Past weight", "a_{t−1}", past, { isRead: true, note: "The weights of the previous step, or the sum of all previous steps." }),
    stage("Convolution", "f = F ∗ a_{t−1}", convolved, { note: "Each filter reads the previous weights around the key." }),
    stage("Location", "V f_j", projectRows(convolved, inputs.matrix("score.place.weight"))),
  ];
}

const SCORES: Record<string, ScoreEquation> = {
  dot: scoreDot,
  scaled_dot: scoreDot,
  general: (inputs, step, toggles) => {
    const keys = stage("Projection", "W k_j", projectRows(inputs.key, inputs.matrix("score.key.weight")), { note: "W maps keys to the space of queries." });
    return multiply(readQuery(inputs, step), [readKeys(inputs), keys], false, toggles);
  },
  projected: (inputs, step, toggles) => {
    const query = { formula: "W_Q q", values: inputs.project("query").row(step) };
    const keys = stage("Projection", "W_K k_j", inputs.project("key"), { isRead: true, note: "The projected keys of this head." });
    return multiply(query, [keys], inputs.mechanism.score["scaled"] !== false, toggles);
  },
  cosine: (inputs, step) => {
    const query = readQuery(inputs, step);
    const length = norm(query.values);
    const lengths = perSlot(inputs.key.rows, (slot) => norm(inputs.key.row(slot)));
    const beta = Math.exp(atMost(inputs.parameter("score.log_sharpening").data, inputs.head));
    const cosines = lengths.map((keyLength, slot) => dot(query.values, inputs.key.row(slot)) / (length * keyLength));
    const cosine = "{q · k_j} / {‖q‖ ‖k_j‖}";
    return [
      readKeys(inputs),
      stage("Norm", "‖k_j‖", lengths),
      stage("Cosine", cosine, cosines, { inputs: [query, number("‖q‖", length)], note: "Between −1 and 1: only the angle counts." }),
      stage("Score", `e_j = β ${cosine}`, cosines.map((value) => beta * value), {
        inputs: [number("β = exp(b)", beta)],
        note: "β is learned. Large values make the weights sharper.",
      }),
    ];
  },
  additive: scoreAdditive,
  location_aware: scoreAdditive,
  concat: (inputs, step) => {
    const query = readQuery(inputs, step);
    const [forKeys, forQuery] = splitConcat(inputs.matrix("score.both.weight"))(inputs.key);
    const projected = apply(forQuery, query.values);
    const hidden = projectRows(inputs.key, forKeys).map((value, _, unit) => at(projected, unit) + value);
    return activate(inputs, [readKeys(inputs)], stage("Projection", "W [k_j; q]", hidden, { inputs: [query] }));
  },
  location: (inputs, step) => {
    const query = readQuery(inputs, step);
    const scores = apply(inputs.matrix("score.positions.weight"), query.values).slice(0, inputs.key.rows);
    return [stage("Score", "e_j = (W q)_j", scores, { inputs: [query], note: "The query alone predicts a score for each position. Keys are not read." })];
  },
};

interface Scope {
  isVisible: (slot: number) => boolean;
  bias: Vector;
  factor: Vector;
  stages: Stage[];
  /** What decides which slots are visible. */
  inputs: Term[];
}

type ScopeEquation = (scope: Part, inputs: HeadInputs, step: number, prefix: string) => Partial<Scope>;

const positionOf = (inputs: HeadInputs, step: number): number => at(inputs.input("position").data, step);

const SCOPES: Record<string, ScopeEquation> = {
  global: () => ({}),
  // Slot j is that of query j. An encoder that reads backward counts positions from the end of the source.
  causal: (scope, inputs, step) => {
    const position = positionOf(inputs, step) - (scope["strict"] ? 1 : 0);
    return { isVisible: (slot) => positionOf(inputs, slot) <= position };
  },
  local_m: (scope, inputs, step) => {
    const position = positionOf(inputs, step);
    return { isVisible: (slot) => Math.abs(slot - position) <= Number(scope["window"]), inputs: [number("p = t", position)] };
  },
  local_p: (scope, inputs, step, prefix) => {
    const query = matrixOf(inputs.input("query")).row(step);
    const inner = apply(matrixOf(inputs.parameter(`${prefix}inner.weight`)), query).map(Math.tanh);
    const outer = inputs.parameter(`${prefix}outer.weight`).data;
    const count = inputs.key.rows;
    const [isScaled, isBias] = [scope["scaled"] === true, scope["normalize"] !== false];
    const center = count * sigmoid(dot(outer, inner) / (isScaled ? Math.sqrt(query.length) : 1));
    const window = Number(scope["window"]);
    const exponent = (position: number): number => -((position - center) ** 2) / (2 * (window / 2) ** 2);
    const curve = isBias ? exponent : (position: number): number => Math.exp(exponent(position));
    const values = perSlot(count, curve);
    return {
      isVisible: (slot) => Math.abs(slot - center) <= window,
      ...(isBias ? { bias: values } : { factor: values }),
      stages: [
        stage("Gaussian", isBias ? "g_j = −{(j − p)²} / {2σ²}" : "g_j = exp(−{(j − p)²} / {2σ²})", values, {
          inputs: [number(isScaled ? "p = S sigmoid({v_p · tanh(W_p q)} / √{d})" : "p = S sigmoid(v_p · tanh(W_p q))", center)],
          isRead: true,
          note: `p is the predicted position of ${count}, counted from 0; σ = ${window / 2}. ${isBias ? "The logarithm of the Gaussian is added to the scores." : "The weights are multiplied by the Gaussian."}`,
          curve,
        }),
      ],
    };
  },
  all_of: (scope, inputs, step, prefix) =>
    (scope["scopes"] as Part[])
      .map((part, index) => computeScope(part, inputs, step, `${prefix}scopes.${index}.`))
      .reduce((left, right) => ({
        isVisible: (slot) => left.isVisible(slot) && right.isVisible(slot),
        bias: left.bias.map((value, slot) => value + at(right.bias, slot)),
        factor: left.factor.map((value, slot) => value * at(right.factor, slot)),
        stages: [...left.stages, ...right.stages],
        inputs: [...left.inputs, ...right.inputs],
      })),
};

/** Compute a scope. That of a plugin is read from the trace: its mask, bias and factor. */
function computeScope(scope: Part, inputs: HeadInputs, step: number, prefix: string): Scope {
  const count = inputs.key.rows;
  const recorded: ScopeEquation = () => ({
    ...(inputs.has("bias") ? { bias: inputs.row("bias", step) } : {}),
    ...(inputs.has("factor") ? { factor: inputs.row("factor", step) } : {}),
  });
  const all = { isVisible: () => true, bias: new Float64Array(count), factor: new Float64Array(count).fill(1), stages: [], inputs: [] };
  return { ...all, ...(SCOPES[scope.kind] ?? recorded)(scope, inputs, step, prefix) };
}

/** The stages of a selection. The values of the last one are the weights. */
type SelectEquation = (scores: Vector, inputs: HeadInputs, step: number) => Stage[];

const maximum = (scores: Vector): number => scores.reduce((best, value) => Math.max(best, value), -Infinity);

export function softmax(scores: Vector): Vector {
  const largest = maximum(scores);
  if (largest === -Infinity) return new Float64Array(scores.length);
  const exponentials = scores.map((value) => Math.exp(value - largest));
  const sum = total(exponentials);
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
const weigh = (formula: string, weights: Vector, details: Partial<Stage> = {}): Stage =>
  stage("Weight", formula, weights, { isShare: true, total: number("∑_j a_j", total(weights)), ...details });

const selectSoftmax: SelectEquation = (scores) => {
  const largest = maximum(scores);
  const exponentials = scores.map((value) => Math.exp(value - largest));
  return [
    stage("Exponential", "exp(e_j − m)", exponentials, {
      inputs: [number("m = max_i e_i", largest)],
      total: number("Z = ∑_i exp(e_i − m)", total(exponentials)),
      note: "The division by Z cancels m, which avoids overflow.",
    }),
    weigh("a_j = {exp(e_j − m)} / Z", softmax(scores), { note: "The weights are positive and sum to 1." }),
  ];
};

const selectLargest: SelectEquation = (scores) => {
  const best = scores.indexOf(maximum(scores));
  const note = "[…] is 1 if the condition is true, otherwise 0. In evaluation, the key with the largest score is taken. In training, a key is sampled.";
  return [weigh("a_j = [j = argmax_i e_i]", perSlot(scores.length, (slot) => (slot === best ? 1 : 0)), { note })];
};

/** Sparse weights: a power of what exceeds a threshold. */
const selectSparse =
  (divisor: number, power: number, formula: string): SelectEquation =>
  (scores) => {
    const scaled = scores.map((value) => value / divisor);
    const largest = maximum(scaled);
    const exceed = (threshold: number): Vector => scaled.map((value) => positive(value - threshold) ** power);
    const threshold = findThreshold((tau) => total(exceed(tau)), largest - 1, largest);
    const note = "τ is chosen so that the weights sum to 1. Scores below the threshold have a weight of exactly 0.";
    return [weigh(formula, exceed(threshold), { inputs: [number("τ", threshold)], note })];
  };

const SELECTIONS: Record<string, SelectEquation> = {
  softmax: selectSoftmax,
  hard_exact: selectSoftmax,
  hard: selectLargest,
  straight_through: selectLargest,
  sparsemax: selectSparse(1, 1, "a_j = max(e_j − τ, 0)"),
  entmax15: selectSparse(2, 2, "a_j = max(e_j / 2 − τ, 0)²"),
  hard_monotonic: (scores, inputs, step) => {
    const belief = inputs.row("belief", step);
    const weights = new Float64Array(scores.length);
    belief.forEach((probability, start) => {
      addScaled(weights.subarray(start), softmax(scores.subarray(start)), probability);
    });
    return [
      stage("Past position", "β_j", belief, { isRead: true, isShare: true, note: "The probability that the previous step read the key." }),
      weigh("a_j = ∑_{i ≤ j} β_i {exp(e_j)} / {∑_{k ≥ i} exp(e_k)}", weights, { note: "The position never moves back." }),
    ];
  },
};

/** Whether the page knows the equations of this mechanism. Those of plugins are not known. */
export function knowsEquation(mechanism: Mechanism): boolean {
  return mechanism.score.kind in SCORES && mechanism.select.kind in SELECTIONS;
}

/** Compute the weights of one step and head, and the stages that lead to them and to the context. */
export function computeRow(entry: AttentionEntry, mechanism: Mechanism, head: number, step: number, toggles: Toggles): Row {
  const inputs = readHead(entry, mechanism, head);
  const stages = computeStages(inputs, step, toggles);
  const weights = last(stages).values.data;
  const values = mechanism.score.kind === "projected" && inputs.value ? inputs.project("value") : inputs.value;
  if (values?.rows !== weights.length) return { stages, weights, context: null };
  const weighted = values.map((value, slot) => at(weights, slot) * value);
  const context = new Float64Array(values.columns);
  for (let slot = 0; slot < weighted.rows; slot++) addScaled(context, weighted.row(slot), 1);
  const formula = mechanism.score.kind === "projected" ? "W_V v_j" : "v_j";
  stages.push(
    stage("Weighted", `a_j ${formula}`, weighted, {
      total: { formula: `${mechanism.heads > 1 ? "c_h" : "c"} = ∑_j a_j ${formula}`, values: context },
      note: "The sum over all keys is the context: what is read at this step.",
    }),
  );
  return { stages, weights, context };
}

/** Compute the stages up to the weights. */
function computeStages(inputs: HeadInputs, step: number, toggles: Toggles): Stage[] {
  const { mechanism } = inputs;
  const [score, select] = [SCORES[mechanism.score.kind], toggles.hard ? selectLargest : SELECTIONS[mechanism.select.kind]];
  if (!score || !select) throw new Error(`The page does not know the equation ${mechanism.equation}.`);
  const stages = score(inputs, step, toggles);
  let scores = last(stages).values.data;
  const scope = computeScope(mechanism.scope, inputs, step, "scope.");
  stages.push(...scope.stages);
  const change = (name: string, formula: string, compute: (score: number, slot: number) => number, details: Partial<Stage> = {}): void => {
    scores = scores.map(compute);
    stages.push(stage(name, formula, scores, details));
  };
  if (scope.bias.some((value) => value !== 0)) change("Biased score", "e_j ← e_j + g_j", (value, slot) => value + at(scope.bias, slot));
  if (toggles.temperature !== 1) change("Temperature", "e_j ← {e_j} / {T}", (value) => value / toggles.temperature, { inputs: [number("T", toggles.temperature)] });
  const recorded = inputs.row("mask", step);
  const isMasked = scores.map((_, slot) => Number(!scope.isVisible(slot) || !(at(recorded, slot) > 0) || toggles.masked.includes(slot)));
  const hidden = total(isMasked);
  if (hidden) {
    const note = `${hidden} of ${scores.length} keys are masked: their score is −∞, so their weight is 0.`;
    change("Mask", "e_j ← −∞ (masked)", (value, slot) => (isMasked[slot] ? -Infinity : value), { inputs: scope.inputs, note });
  }
  stages.push(...(hidden === scores.length ? [weigh("a_j = 0", new Float64Array(hidden))] : select(scores, inputs, step)));
  if (scope.factor.some((value) => value !== 1)) {
    const product = last(stages).values.data.map((value, slot) => value * at(scope.factor, slot));
    stages.push({ ...weigh("a_j ← a_j g_j", product, { note: "These weights do not sum to 1." }), name: "Windowed" });
  }
  return stages;
}

const SYMBOLS: Readonly<Record<string, string>> = {
  q: "query of this step",
  j: "index of a key, from 0 (diagram: from 1)",
  k_j: "key j",
  "a_{t−1}": "weights of the previous step, or the sum of all previous steps",
  f: "convolution of these weights with the filters F",
  t: "index of this step, from 0",
  S: "number of keys",
  p: "center of the window",
  σ: "standard deviation of the Gaussian",
  g_j: "bias or factor of key j",
  d: "width of the vectors in the dot product",
  β: "learned factor, the exponential of b",
  T: "temperature",
  e_j: "score of key j",
  m: "largest score",
  Z: "sum of the exponentials",
  τ: "threshold",
  β_j: "probability that the previous step read key j",
  a_j: "weight of key j",
  v_j: "value of key j",
  c_h: "context of head h",
  c: "context",
};
const LEARNED = ["W", "U", "V", "F", "v", "b", "W_p", "v_p", "W_Q", "W_K", "W_V"];

/** Return the symbols in formulas with their meanings, and the learned parameters in the formulas. */
export function explainSymbols(formulas: readonly string[]): { symbols: [string, string][]; learned: string[] } {
  const found = new Set(formulas.flatMap((formula) => formula.match(/(?<!_)\p{L}+(_(\{.*?\}|.))?/gu) ?? []));
  return { symbols: Object.entries(SYMBOLS).filter(([symbol]) => found.has(symbol)), learned: LEARNED.filter((symbol) => found.has(symbol)) };
}

/** Return max |page − model| over all steps and heads of an attention. */
export function checkEquation(entry: AttentionEntry, mechanism: Mechanism): number {
  let largest = 0;
  splitMatrices(decodeArray(entry)).forEach((weights, head) => {
    const inputs = readHead(entry, mechanism, head);
    for (let step = 0; step < weights.rows; step++) {
      const computed = last(computeStages(inputs, step, UNCHANGED)).values.data;
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
