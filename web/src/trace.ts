/** The trace document (docs/trace-document.md): its fields, and what the views look up in it. */
import { decodeArray, splitMatrices, type EncodedArray, type Matrix } from "./arrays.js";

export type Role = "encoder-self" | "decoder-self" | "cross";
export const ROLES: readonly Role[] = ["cross", "encoder-self", "decoder-self"];
export const ROLE_NAMES: Record<Role, string> = {
  cross: "Cross-attention",
  "encoder-self": "Encoder self-attention",
  "decoder-self": "Decoder self-attention",
};

export interface Candidate {
  token: string;
  id: number;
  log_prob: number | null;
}

export interface Step extends Candidate {
  entropy: number;
  top: Candidate[];
}

export interface BeamNode {
  token: string;
  id: number;
  parent: number;
  group: number;
  outcome: "kept" | "finished" | "pruned";
  slot: number | null;
  score: number | null;
  log_prob: number | null;
}

export interface Hypothesis {
  text: string;
  tokens: string[];
  score: number | null;
  /** The value by which hypotheses are sorted. */
  ranking_score?: number | null;
  truncated: boolean;
  /** Whether a loop was removed. */
  looped?: boolean;
}

/** A score, scope or selection: its name and its options. */
export type Part = { kind: string } & Record<string, unknown>;

export interface Mechanism {
  role: Role;
  layer: number;
  heads: number;
  equation: string;
  score: Part;
  scope: Part;
  select: Part;
  parameters?: Record<string, EncodedArray>;
}

export interface AttentionEntry extends EncodedArray {
  name: string;
  role: Role;
  layer: number;
  hypothesis: number | null;
  inputs?: Record<string, EncodedArray>;
}

export type Edit = { kind: string } & Record<string, unknown>;

export interface TraceDocument {
  format: number;
  model: { architecture: string; step: number; dtype: string; members: number; version: string };
  source: {
    text: string;
    tokens: string[];
    offsets: [number, number][];
    unknown: string[];
    grid: [number, number] | null;
    picture: EncodedArray | null;
  };
  hypotheses: Hypothesis[];
  steps: Step[][];
  beam: BeamNode[][] | null;
  attention: AttentionEntry[];
  mechanisms: Record<string, Mechanism>;
  /** The recorded states and gates of recurrent cells. */
  states?: { name: string; hypothesis: number | null; direction: string; states: object; gates: object }[];
  settings: Record<string, unknown>;
  edits: Edit[];
  /** What the edits changed. */
  changes?: { text: string; tokens: string[]; score: number | null; first_step: number | null; variation?: Record<string, number[]> } | null;
  cached?: boolean;
  seconds?: number;
}

/** The tokens that the rows and columns of an attention belong to. */
export interface Axes {
  rows: string[];
  columns: string[];
  rowName: string;
  columnName: string;
}

/** Return the roles that the model has, cross-attention first. */
export function findRoles(trace: TraceDocument): Role[] {
  return ROLES.filter((role) => trace.attention.some((entry) => entry.role === role));
}

/** Return the attentions of a role for a hypothesis, one for each layer. */
export function findLayers(trace: TraceDocument, role: Role, hypothesis: number): AttentionEntry[] {
  return trace.attention
    .filter((entry) => entry.role === role && (entry.hypothesis === null || entry.hypothesis === hypothesis))
    .sort((left, right) => left.layer - right.layer);
}

/** Return the weights of each head. */
export function readHeads(entry: AttentionEntry): Matrix[] {
  return splitMatrices(decodeArray(entry));
}

/** Tokens that a prediction never contains. */
const NEVER_PREDICTED: ReadonlySet<string> = new Set(["<pad>", "<unk>", "<s>"]);

/** Return the most likely tokens of a step, without those that a prediction never contains. */
export const listPossible = (step: Step): Candidate[] => step.top.filter(({ token }) => !NEVER_PREDICTED.has(token));

export function findAxes(trace: TraceDocument, role: Role, hypothesis: number): Axes {
  const output = trace.hypotheses[hypothesis]?.tokens ?? [];
  const source = nameSlots(trace);
  const axes: Record<Role, Axes> = {
    cross: { rows: output, columns: source, rowName: "output", columnName: "source" },
    "encoder-self": { rows: source, columns: source, rowName: "source", columnName: "source" },
    "decoder-self": { rows: output, columns: ["<s>", ...output.slice(0, -1)], rowName: "output", columnName: "input" },
  };
  return axes[role];
}

/** Return a name for each memory slot: its token, or its row and column in a picture. */
export function nameSlots(trace: TraceDocument): string[] {
  const grid = trace.source.grid;
  if (!grid) return trace.source.tokens;
  return Array.from({ length: grid[0] * grid[1] }, (_, slot) => `${Math.floor(slot / grid[1]) + 1},${(slot % grid[1]) + 1}`);
}

/** Return in sentences what the model does not read of a source: characters without a token, and a part that is cut off. */
export function describeReading({ source }: TraceDocument): string[] {
  if (source.grid) return [];
  const characters = [...source.text];
  const end = source.offsets.reduce((last, [, stop]) => Math.max(last, stop), 0);
  // White space, and marks that belong to the character before them, may have no token of their own.
  const isCut = /[^\s\p{M}\p{C}]/u.test(characters.slice(end).join(""));
  const named = source.unknown.map((part) => `“${part}”`);
  const last = named.pop();
  return [
    isCut ? `The source is too long: the model reads the first ${format(end)} of ${format(characters.length)} characters.` : "",
    last ? `The model reads ${named.length ? `${named.join(", ")} and ` : ""}${last} as the unknown token, so its output does not depend on what this text is.` : "",
  ].filter(Boolean);
}

const format = (count: number): string => count.toLocaleString("en");

/** Return a visible label of a token: ␣ for white space, and a dotted circle before a combining character. */
export function labelToken(token: string): string {
  if (/^\s+$/u.test(token)) return "␣";
  if (/^\p{M}/u.test(token)) return `◌${token}`;
  if (/^[\p{Cf}\p{Cc}]/u.test(token)) return `U+${token.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`;
  return token.replaceAll("▁", "ˍ");
}

/** Describe a hypothesis: its scores, and how it ended. */
export function describeHypothesis(hypothesis: Hypothesis): string {
  const { score, ranking_score: rank = score, truncated, looped } = hypothesis;
  const notes = [rank === score ? "" : `, ranking score ${formatNumber(rank)}`, truncated ? ", truncated" : "", looped ? ", a loop was removed" : ""];
  return `Log-probability ${formatNumber(score)}${notes.join("")}`;
}

export function toProbability(logProb: number | null): number {
  return logProb === null ? 0 : Math.exp(logProb);
}

export function formatPercent(probability: number): string {
  if (probability > 0 && probability < 0.001) return "<0.1 %";
  return `${(100 * probability).toFixed(probability >= 0.9995 ? 0 : 1)} %`;
}

export function formatNumber(value: number | null, digits = 3): string {
  if (value === null || value === -Infinity) return "−∞";
  const text = value.toFixed(digits);
  return (Number(text) ? text : text.replace("-", "")).replace("-", "−");
}

/** Describe how the log-probability of an output changed. */
export function formatChange(before: number | null, after: number | null): string {
  const difference = formatNumber((after ?? 0) - (before ?? 0));
  return `Log-probability ${formatNumber(before)} → ${formatNumber(after)} (${/^(−|0\.0*$)/.test(difference) ? "" : "+"}${difference}).`;
}
