/** Attributions: scores of source tokens by other methods than attention, on the same matrix. */
import { at, decodeArray, splitMatrices, type EncodedArray, type Matrix } from "./arrays.js";
import { findMarks } from "./edits.js";
import type { AttributionRequest } from "./requests.js";
import { groupTokens, normalizeRows, type SelectedMap } from "./selection.js";
import { nameSlots, type TraceDocument } from "./trace.js";

export const METHODS = ["gradient_x_input", "integrated_gradients", "occlusion", "value_zeroing"] as const satisfies AttributionRequest["methods"];
export type Method = (typeof METHODS)[number];
export const METHOD_NAMES: Record<Method, string> = {
  gradient_x_input: "Gradient × input",
  integrated_gradients: "Integrated gradients",
  occlusion: "Occlusion",
  value_zeroing: "Value zeroing",
};
export const METHOD_MEANINGS: Record<Method, string> = {
  gradient_x_input: "How fast the log-probability of the output token changes if the embedding of the source token is scaled.",
  integrated_gradients: "The gradient, integrated from a zero embedding to the source token. A row adds up to the change of the log-probability.",
  occlusion: "How much the log-probability of the output token decreases if the source token is unknown.",
  value_zeroing: "How much the state of the decoder changes if the values of the source token are zero.",
};

/** The unit of the scores: the change of a log-probability is in nats. */
export const METHOD_UNITS: Partial<Record<Method, string>> = { gradient_x_input: " nats", integrated_gradients: " nats", occlusion: " nats" };

/** An entry of `attributions` in a trace (docs/trace-document.md), with the tokens that its rows explain. */
export interface Attribution extends EncodedArray {
  method: Method;
  tokens: string[];
  steps: number[];
  spearman: number | null;
  kendall: number | null;
  /** Missing in pages that were exported before it was computed. */
  overlap?: number | null;
  deltas: number[] | null;
}

/** Scores by token or by word. Rows are normalized, so that methods are comparable. */
export interface Scores extends SelectedMap {
  /** The sum of the absolute scores of each row, before it was normalized. */
  effects: number[];
}

export function selectScores(attribution: Attribution, trace: TraceDocument, words: boolean): Scores {
  const scores = at(splitMatrices(decodeArray(attribution)), 0);
  const axes = { rows: attribution.tokens, columns: nameSlots(trace), rowName: "output", columnName: "source" };
  const map = groupTokens(trace, scores, axes, words);
  const effects = Array.from({ length: map.weights.rows }, (_, row) => map.weights.row(row).reduce((sum, score) => sum + Math.abs(score), 0));
  return { ...map, marks: findMarks(trace, [], null, map.rowSpans, map.columnSpans), weights: normalizeRows(map.weights), title: METHOD_NAMES[attribution.method], effects };
}

/** Return the scores as they are drawn: the smaller the total effect of a row is, the fainter is the row. */
export function fadeRows({ weights, effects }: Scores): Matrix {
  const largest = Math.max(...effects) || 1;
  return weights.map((score, row) => score * Math.sqrt(at(effects, row) / largest));
}
