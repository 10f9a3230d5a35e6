/** The state of the page, and its form in the fragment of the URL. A reload reproduces the page. */
import type { Toggles } from "./equation.js";
import { UNCHANGED } from "./equation.js";
import type { Order } from "./flow.js";
import { METHODS, type Method } from "./attribution.js";
import { NEIGHBOR_KINDS, type NeighborKind } from "./client.js";
import { COLUMNS, TRAITS, type Filter } from "./corpus.js";
import { MAX_BEAM, MAX_ROWS } from "./requests.js";
import type { Head, Layer } from "./selection.js";
import type { Edit, Role } from "./trace.js";

export const TABS = ["gallery", "translate", "attention", "steps", "equation", "compare", "corpus", "image", "model"] as const;
export type Tab = (typeof TABS)[number];
export const TAB_NAMES: Record<Tab, string> = {
  gallery: "Gallery",
  translate: "Translate",
  attention: "Attention",
  steps: "Steps",
  equation: "Equation",
  compare: "Compare",
  corpus: "Corpus",
  image: "Image",
  model: "Model",
};

export const VIEWS = ["matrix", "lines", "grid", "text"] as const;
export type ViewName = (typeof VIEWS)[number];
export type ColorScale = "fixed" | "row";

export interface State extends Filter {
  tab: Tab;
  model: string;
  text: string;
  /** The index of an image in the test set, or in the dev set; null for another image, or a text. */
  example: number | null;
  beam: number;
  edits: Edit[];
  hypothesis: number;
  role: Role;
  /** null: the last layer. */
  layer: Layer | null;
  head: Head;
  view: ViewName;
  /** null: tokens for short sources, words for long ones. */
  words: boolean | null;
  colors: ColorScale;
  /** The attribution beside the weights; empty for none. */
  method: Method | "";
  /** The focused output token; null: the most informative one. */
  row: number | null;
  /** The focused slot; null: the one with the largest weight of the focused row. */
  column: number | null;
  /** Where each head is ablated: nowhere (0), for this source (1), or also for other examples (2). */
  ablations: number;
  /** Output tokens that are selected together. */
  rows: number[];
  /** What to compare with: the model of this id, or "original", the prediction without edits. */
  other: string;
  /** Which of the nearest training pairs are listed; empty for none. */
  neighbors: NeighborKind | "";
  /** How many pairs of the corpus are predicted. */
  pairs: number;
  /** The column that sorts the corpus, with "-" for descending; empty for the order of the file. */
  sort: string;
  /** Whether the weights on a picture are interpolated. */
  smooth: boolean;
  toggles: Toggles;
  /** The order of the keys of an equation; empty: by position, or by weight if there are many. */
  order: Order | "";
  /** Whether the keys with little weight are drawn, too. */
  tail: boolean;
  /** The active stage of the equation. */
  stage: number | null;
}

/** The fields that decide what the model computes. A change of them can be undone. */
const COMPUTED = ["model", "text", "example", "beam", "edits"] as const;
export type Computed = Pick<State, (typeof COMPUTED)[number]>;

export function pickComputed(state: State): Computed {
  return Object.fromEntries(COMPUTED.map((name) => [name, state[name]])) as unknown as Computed;
}

/** What a list offers to open: a source, or a prediction of an exported page. */
export interface Example {
  label: string;
  state: Partial<Computed>;
}

export const INITIAL: State = {
  tab: "translate",
  model: "0",
  text: "",
  example: null,
  beam: 4,
  edits: [],
  hypothesis: 0,
  role: "cross",
  layer: null,
  head: "mean",
  view: "matrix",
  words: null,
  colors: "fixed",
  method: "",
  row: null,
  column: null,
  ablations: 0,
  rows: [],
  other: "",
  neighbors: "",
  pairs: 200,
  sort: "confidence",
  only: [],
  shortest: null,
  longest: null,
  smooth: true,
  toggles: UNCHANGED,
  order: "",
  tail: false,
  stage: null,
};

/** Fields whose value is text. All others are written as JSON. */
const TEXTS: ReadonlySet<string> = new Set(["tab", "model", "text", "role", "view", "colors", "method", "other", "neighbors", "sort", "order"]);

/** Return the fragment of a state: the fields that differ from the initial state. */
export function writeFragment(state: State): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = TEXTS.has(name) ? String(value) : JSON.stringify(value);
    const initial = INITIAL[name as keyof State];
    if (text !== (TEXTS.has(name) ? String(initial) : JSON.stringify(initial))) parameters.set(name, text);
  }
  return parameters.toString();
}

/** Return the state of a fragment. Fields that are missing or not valid have their initial value. */
export function readFragment(fragment: string): State {
  const parameters = new URLSearchParams(fragment.replace(/^#/, ""));
  const state: Record<string, unknown> = { ...INITIAL };
  for (const name of Object.keys(INITIAL)) {
    const text = parameters.get(name);
    if (text === null) continue;
    const value = TEXTS.has(name) ? text : parse(text);
    if (CHECKS[name as keyof State](value)) state[name] = value;
  }
  return state as unknown as State;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const isText = (value: unknown): boolean => typeof value === "string";
const isIndex = (value: unknown): boolean => Number.isInteger(value) && (value as number) >= 0;
const isOneOf =
  (...choices: readonly unknown[]) =>
  (value: unknown): boolean =>
    choices.includes(value);
const isLimit = (value: unknown): boolean => value === null || isIndex(value);
const isIndices = (value: unknown): boolean => Array.isArray(value) && value.every(isIndex);

function isToggles(value: unknown): boolean {
  if (typeof value !== "object" || value === null) return false;
  const toggles = value as Record<string, unknown>;
  return (
    typeof toggles["scaling"] === "boolean" &&
    typeof toggles["hard"] === "boolean" &&
    typeof toggles["temperature"] === "number" &&
    toggles["temperature"] > 0 &&
    isIndices(toggles["masked"])
  );
}

const CHECKS: Record<keyof State, (value: unknown) => boolean> = {
  tab: isOneOf(...TABS),
  model: isText,
  text: isText,
  example: (value) => value === null || isIndex(value),
  beam: (value) => isIndex(value) && (value as number) >= 1 && (value as number) <= MAX_BEAM,
  edits: (value) => Array.isArray(value) && value.every((edit) => typeof edit?.kind === "string"),
  hypothesis: isIndex,
  role: isOneOf("cross", "encoder-self", "decoder-self"),
  layer: (value) => value === null || isIndex(value) || isOneOf("mean", "max", "rollout")(value),
  head: (value) => isIndex(value) || isOneOf("mean", "max")(value),
  view: isOneOf(...VIEWS),
  words: isOneOf(true, false, null),
  colors: isOneOf("fixed", "row"),
  method: isOneOf("", ...METHODS),
  row: (value) => value === null || isIndex(value),
  column: isLimit,
  ablations: isOneOf(0, 1, 2),
  rows: isIndices,
  other: isText,
  neighbors: isOneOf("", ...NEIGHBOR_KINDS),
  pairs: (value) => isIndex(value) && (value as number) >= 1 && (value as number) <= MAX_ROWS,
  sort: isOneOf("", ...COLUMNS, ...COLUMNS.map((column) => `-${column}`)),
  only: (value) => Array.isArray(value) && value.every(isOneOf(...TRAITS)),
  shortest: isLimit,
  longest: isLimit,
  smooth: isOneOf(true, false),
  toggles: isToggles,
  order: isOneOf("", "weight", "position"),
  tail: isOneOf(true, false),
  stage: (value) => value === null || isIndex(value),
};
