/** Which attention weights are shown: how layers, heads and tokens are combined, as regard.inspection.views.maps does. */
import { addScaled, at, atMost, cached, Matrix } from "./arrays.js";
import { findMarks, type Marks } from "./edits.js";
import { findAxes, findLayers, labelToken, readHeads, nameSlots, ROLE_NAMES, type Axes, type Hypothesis, type Role, type TraceDocument } from "./trace.js";
import { combineWords, findWords, isContent, joinWord, type Span } from "./words.js";

export type Reduction = "mean" | "max";
export type Layer = number | Reduction | "rollout";
export type Head = number | Reduction;

export interface SelectedMap {
  weights: Matrix;
  axes: Axes;
  title: string;
  /** The tokens of each row and column: one, or those of a word. */
  rowSpans: Span[];
  columnSpans: Span[];
  /** What edits changed in it. */
  marks?: Marks;
}

/** Combine matrices of one shape element by element. */
export function reduce(parts: readonly Matrix[], how: Reduction): Matrix {
  const { rows, columns, data } = at(parts, 0);
  const combined = Float64Array.from(data);
  for (const part of parts.slice(1)) {
    if (how === "mean") addScaled(combined, part.data, 1);
    else part.data.forEach((value, index) => (combined[index] = Math.max(combined[index] ?? NaN, value)));
  }
  return new Matrix(rows, columns, how === "mean" ? combined.map((sum) => sum / parts.length) : combined);
}

function selectHead(heads: readonly Matrix[], head: Head): Matrix {
  return typeof head === "number" ? atMost(heads, head) : reduce(heads, head);
}

/** Divide each row by the sum of its absolute values. */
export function normalizeRows(weights: Matrix): Matrix {
  return Matrix.fromRows(weights.rows, weights.columns, (index) => {
    const row = weights.row(index);
    const sum = row.reduce((total, value) => total + Math.abs(value), 0);
    return row.map((value) => (sum > 0 ? value / sum : 0));
  });
}

const addResidual = (weights: Matrix): Matrix =>
  normalizeRows(weights).map((value, row, column) => 0.5 * value + (row === column ? 0.5 : 0));

/** Return the attention rollout (Abnar and Zuidema 2020) of a self-attention, given the weights of its layers. */
export function rollOut(layers: readonly Matrix[]): Matrix {
  return layers.reduce((rollout, weights) => addResidual(weights).multiply(rollout), Matrix.identity(at(layers, 0).columns));
}

/** Return the rollout of the cross-attention. `encoder` and `decoder` may be empty: they may be recurrent. */
export function rollOutCross(encoder: readonly Matrix[], decoder: readonly Matrix[], cross: readonly Matrix[]): Matrix {
  const last = at(cross, cross.length - 1);
  const encoded = encoder.length ? rollOut(encoder) : Matrix.identity(last.columns);
  if (!decoder.length) return normalizeRows(last.multiply(encoded));
  const source = decoder.reduce((sum, self, layer) => {
    const own = addResidual(self).multiply(sum);
    const read = normalizeRows(at(cross, layer)).multiply(encoded);
    return own.map((value, row, column) => 0.5 * value + 0.5 * read.at(row, column));
  }, new Matrix(last.rows, last.columns));
  return normalizeRows(source);
}

/** Whether the rollout is defined: it needs a self-attention, and one for each cross-attention of the decoder. */
export function hasRollout(trace: TraceDocument, role: Role, hypothesis: number): boolean {
  const count = (part: Role): number => findLayers(trace, part, hypothesis).length;
  if (role !== "cross") return count(role) > 0;
  const decoder = count("decoder-self");
  return (count("encoder-self") > 0 || decoder > 0) && (decoder === 0 || decoder === count("cross"));
}

function selectWeights(trace: TraceDocument, role: Role, hypothesis: number, layer: Layer, head: Head): Matrix {
  const read = (part: Role): Matrix[] =>
    findLayers(trace, part, hypothesis).map((entry) => selectHead(readHeads(entry), head));
  const layers = read(role);
  if (layer === "rollout" && hasRollout(trace, role, hypothesis)) {
    return role === "cross" ? rollOutCross(read("encoder-self"), read("decoder-self"), layers) : rollOut(layers);
  }
  if (layer === "mean" || layer === "max") return reduce(layers, layer);
  return atMost(layers, typeof layer === "number" ? layer : Infinity);
}

const COMBINATIONS: Record<Reduction, string> = { mean: "average of", max: "maximum of" };

function describe(trace: TraceDocument, role: Role, hypothesis: number, layer: Layer, head: Head): string {
  const layers = findLayers(trace, role, hypothesis);
  const heads = readHeads(at(layers, 0)).length;
  const parts = [layer === "rollout" ? `Rollout of ${ROLE_NAMES[role].toLowerCase()}` : ROLE_NAMES[role]];
  if (layers.length > 1 && layer !== "rollout") {
    parts.push(typeof layer === "number" ? `layer ${layer + 1}` : `${COMBINATIONS[layer]} ${layers.length} layers`);
  }
  if (heads > 1) parts.push(typeof head === "number" ? `head ${head + 1}` : `${COMBINATIONS[head]} ${heads} heads`);
  return parts.join(", ");
}

/** Return the index of the span that contains a token; the last one for a token behind all spans. */
export function findSpan(spans: readonly Span[], token: number): number {
  const found = spans.findIndex(([start, end]) => token >= start && token < end);
  return found >= 0 ? found : Math.max(0, spans.length - 1);
}

/** Return the labels of a row and a column. */
export function labelCell(map: SelectedMap, row: number, column: number): [row: string, column: string] {
  return [labelToken(map.axes.rows[row] ?? ""), labelToken(map.axes.columns[column] ?? "")];
}

/**
 * Return the output token to start with: the first one that edits have changed, or one that the source does not contain,
 * with the most concentrated attention.
 */
export function findInformativeStep(trace: TraceDocument, hypothesis: number): number {
  const output = trace.hypotheses[hypothesis];
  const changed = trace.changes?.first_step ?? Infinity;
  if (!output) return 0;
  return hypothesis === 0 && changed < output.tokens.length ? changed : findConcentrated(trace)(output);
}

const findConcentrated = cached((trace: TraceDocument) =>
  cached((output: Hypothesis) => {
    const keys = nameSlots(trace);
    const content = [...output.tokens.keys()].filter((step) => isContent(at(output.tokens, step)));
    const translated = content.filter((step) => !keys.includes(at(output.tokens, step)));
    const steps = translated.length ? translated : content;
    const map = selectMap(trace, { role: "cross", layer: "mean", head: "mean", hypothesis: trace.hypotheses.indexOf(output), words: false });
    const concentrations = steps.map((step) => map?.weights.row(step).reduce((best, weight, slot) => Math.max(best, isContent(keys[slot] ?? "") ? weight : 0), 0) ?? 0);
    return steps[concentrations.indexOf(Math.max(...concentrations))] ?? 0;
  }),
);

export interface MapChoice {
  role: Role;
  layer: Layer;
  head: Head;
  hypothesis: number;
  words: boolean;
}

/** Return the selected map, or null if the trace has no attention of this role. A layer behind the last one is the last one. */
export function selectMap(trace: TraceDocument, choice: MapChoice): SelectedMap | null {
  const { role, head, hypothesis, words } = choice;
  const layers = findLayers(trace, role, hypothesis);
  if (!layers.length) return null;
  const layer = typeof choice.layer === "number" ? Math.min(choice.layer, layers.length - 1) : choice.layer;
  const map = groupTokens(trace, selectWeights(trace, role, hypothesis, layer, head), findAxes(trace, role, hypothesis), words);
  const title = describe(trace, role, hypothesis, layer, head);
  const shown = typeof layer === "number" ? [at(layers, layer)] : layers;
  const marks = findMarks(trace, shown, typeof head === "number" ? head : null, map.rowSpans, map.columnSpans);
  return { ...map, marks, title: `${title}${words ? ", words" : ""}${marks.isOff ? ", off" : marks.off ? `, ${marks.off} of them off` : ""}` };
}

/** Return a map by token or by word. Cells of a picture are not words. */
export function groupTokens(trace: TraceDocument, weights: Matrix, axes: Axes, words: boolean): Omit<SelectedMap, "title"> {
  const group = (count: number, tokens: readonly string[], name: string): Span[] =>
    words && (trace.source.grid === null || name !== "source") ? findWords(tokens) : Array.from({ length: count }, (_, index) => [index, index + 1]);
  const rowSpans = group(weights.rows, axes.rows, axes.rowName);
  const columnSpans = group(weights.columns, axes.columns, axes.columnName);
  if (!words) return { weights, axes, rowSpans, columnSpans };
  const join = (tokens: readonly string[], spans: readonly Span[]): string[] => spans.map(([start, end]) => joinWord(tokens.slice(start, end)));
  return {
    weights: combineWords(weights, rowSpans, columnSpans),
    axes: { ...axes, rows: join(axes.rows, rowSpans), columns: join(axes.columns, columnSpans) },
    rowSpans,
    columnSpans,
  };
}
