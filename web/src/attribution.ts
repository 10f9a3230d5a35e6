/** Attributions: scores of source tokens by other methods than attention, on the same matrix. */
import { decodeArray, Matrix, splitMatrices, type EncodedArray } from "./arrays.js";
import type { AttributionRequest } from "./requests.js";
import type { SelectedMap } from "./selection.js";
import { nameSlots, type TraceDocument } from "./trace.js";
import { combineWords, findWords, joinWord, type Span } from "./words.js";

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

/** An entry of `attributions` in a trace (docs/trace.md), with the tokens that its rows explain. */
export interface Attribution extends EncodedArray {
  method: Method;
  tokens: string[];
  steps: number[];
  spearman: number | null;
  kendall: number | null;
  deltas: number[] | null;
}

/** Divide each row by the sum of its absolute scores, so that rows and methods are comparable. */
export function normalizeScores(scores: Matrix): Matrix {
  const sums = Array.from({ length: scores.rows }, (_, row) => scores.row(row).reduce((sum, score) => sum + Math.abs(score), 0));
  return scores.map((score, row) => (sums[row] > 0 ? score / sums[row] : 0));
}

/** Return the normalized scores with their axes, by token or by word. */
export function selectScores(attribution: Attribution, trace: TraceDocument, words: boolean): SelectedMap {
  const [scores] = splitMatrices(decodeArray(attribution));
  const slots = nameSlots(trace);
  const group = (tokens: readonly string[], isWord: boolean): Span[] =>
    isWord ? findWords(tokens) : tokens.map((_, index) => [index, index + 1]);
  const rowSpans = group(attribution.tokens, words);
  const columnSpans = group(slots, words && trace.source.grid === null);
  const join = (tokens: readonly string[], spans: readonly Span[]): string[] =>
    words ? spans.map(([start, end]) => joinWord(tokens.slice(start, end))) : [...tokens];
  return {
    weights: normalizeScores(combineWords(scores, rowSpans, columnSpans)),
    axes: { rows: join(attribution.tokens, rowSpans), columns: join(slots, columnSpans), rowName: "output", columnName: "source" },
    title: METHOD_NAMES[attribution.method],
    rowSpans,
    columnSpans,
  };
}
