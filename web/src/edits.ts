/** Edits in words: what the reader changed before the model decoded again. */
import { removeAt } from "./arrays.js";
import { align } from "./difference.js";
import { findAxes, labelToken, readHeads, ROLE_NAMES, type AttentionEntry, type Edit, type TraceDocument } from "./trace.js";
import { listSourceWords, type Span } from "./words.js";

/** Edits of the attention and masks of the source. A source and output tokens do not contain them. */
const INSIDE: ReadonlySet<string> = new Set(["set_row", "mask_keys", "uniform_row", "ablate_head", "mask_source", "mask_region"]);
export const changesModel = (edit: Edit): boolean => INSIDE.has(edit.kind);

const nameStep = (edit: Edit): string => (typeof edit["step"] === "number" ? `step ${edit["step"] + 1}` : "all steps");
const count = (values: unknown, noun: string): string => {
  const { length } = values as unknown[];
  return `${length} ${noun}${length === 1 ? "" : "s"}`;
};

/** The words of the source while edits change it. Positions of an edit are those of the text before it. */
class SourceWords {
  private readonly words: string[];

  constructor(
    text: string,
    private tokens: readonly string[],
  ) {
    this.words = listSourceWords(text).map((word) => word.text);
  }

  name(edit: Edit): string {
    const position = Number(edit["position"]);
    const place = `source ${isToken(edit) ? "token" : "word"} ${position + 1}`;
    const name = (isToken(edit) ? this.tokens : this.words)[position];
    return name === undefined ? place : `“${labelToken(name)}”${isToken(edit) ? ` (${place})` : ""}`;
  }

  apply(edit: Edit): void {
    const position = Number(edit["position"]);
    if (movesSource(edit)) this.tokens = isToken(edit) && edit.kind === "delete_source" ? removeAt(this.tokens, position) : [];
    if (isToken(edit)) return;
    if (edit.kind === "replace_source") this.words.splice(position, 1, ...listSourceWords(String(edit["text"])).map((word) => word.text));
    if (edit.kind === "delete_source") this.words.splice(position, 1);
  }
}

/** Name the attention and the head of an edit, as far as the model has several. */
function nameHead(edit: Edit, trace: TraceDocument | null): string {
  const { head } = edit;
  const mechanisms = trace?.mechanisms ?? {};
  const mechanism = mechanisms[String(edit["attention"])];
  const number = typeof head === "number" ? `head ${head + 1}` : "all heads";
  if (!mechanism) return number;
  const { role, layer, heads } = mechanism;
  const others = Object.values(mechanisms);
  const name = others.length === 1 ? "attention" : ROLE_NAMES[role].toLowerCase();
  const hasLayers = others.filter((each) => each.role === role).length > 1;
  return `${name}${hasLayers ? ` layer ${layer + 1}` : ""}${heads > 1 ? `, ${number}` : ""}`;
}

function describe(edit: Edit, source: SourceWords, trace: TraceDocument | null): string {
  const named = (slots: unknown): string => {
    const [slot = -1, ...rest] = slots as number[];
    const role = trace?.mechanisms[String(edit["attention"])]?.role;
    const token = role && !rest.length ? findAxes(trace, role, 0).columns[slot] : undefined;
    return token === undefined ? count(slots, "key") : `“${labelToken(token)}”`;
  };
  const token = (): string => {
    const step = Number(edit["step"]);
    return trace?.hypotheses[0]?.tokens[step] ?? (trace?.hypotheses[0] && step === trace.hypotheses[0].tokens.length ? "</s>" : String(edit["token"]));
  };
  const place = (): string => `at ${nameStep(edit)}, ${nameHead(edit, trace)}`;
  const descriptions: Record<string, () => string> = {
    force_token: () => `“${labelToken(token())}” forced at ${nameStep(edit)}`,
    set_row: () => `weights set ${place()}`,
    mask_keys: () => `${named(edit["keys"])} masked ${place()}`,
    uniform_row: () => `uniform weights ${place()}`,
    ablate_head: () => `${nameHead(edit, trace)} off`,
    replace_source: () => `${source.name(edit)} → “${String(edit["text"])}”`,
    delete_source: () => `${source.name(edit)} deleted`,
    mask_source: () => `${source.name(edit)} hidden`,
    mask_region: () => `${count(edit["cells"], "cell")} brushed out`,
  };
  return descriptions[edit.kind]?.() ?? edit.kind;
}

/** Return a description of each edit of a text, whose tokens may be unknown. */
export function describeEdits(edits: readonly Edit[], text: string, trace: TraceDocument | null, tokens: readonly string[] = []): string[] {
  const source = new SourceWords(text, tokens);
  return edits.map((edit) => {
    const description = describe(edit, source, trace);
    source.apply(edit);
    return description;
  });
}

export const isEqual = (left: unknown, right: unknown): boolean => JSON.stringify(left) === JSON.stringify(right);
const targetOf = (edit: Edit): unknown[] => [edit["attention"], edit["head"] ?? null, edit["step"] ?? null];
const setsRow = (edit: Edit): boolean => edit.kind === "set_row" || edit.kind === "uniform_row";
const isToken = (edit: Edit): boolean => edit["unit"] === "token";
export const movesSource = (edit: Edit): boolean => edit.kind === "replace_source" || edit.kind === "delete_source";

/** Add an edit to others. One that has no effect beside them is not added, and one that replaces others is the only one. */
export function mergeEdit(edits: readonly Edit[], edit: Edit): Edit[] {
  if (edit.kind === "force_token") {
    // Later tokens were forced after another prefix.
    const kept = edits.filter((each) => each.kind !== "force_token" || Number(each["step"]) < Number(edit["step"]));
    return [...kept, edit];
  }
  if (setsRow(edit)) return [...edits.filter((each) => !setsRow(each) || !isEqual(targetOf(each), targetOf(edit))), edit];
  const last = edits.findLastIndex((each) => isEqual(each, edit));
  // The word that follows a deleted word has its position.
  const isRepeated = last >= 0 && edit.kind !== "delete_source" && !(edit["position"] !== undefined && edits.slice(last + 1).some(movesSource));
  return isRepeated ? [...edits] : [...edits, edit];
}

/** Whether the output of a head is set to zero. */
export const isAblated = (edits: readonly Edit[], attention: string, head: number): boolean =>
  edits.some((edit) => edit.kind === "ablate_head" && edit["attention"] === attention && edit["head"] === head);

/** What edits changed in a map: its rows and columns are tokens or words. */
export interface Marks {
  /** The rows whose weights were set. */
  rows: readonly number[];
  /** The cells that were masked. */
  cells: readonly { row: number; column: number }[];
  /** How many of its heads are off, and whether all are. */
  off: number;
  isOff: boolean;
  /** The rows and columns whose tokens were hidden in the source. */
  struck: { rows: ReadonlySet<number>; columns: ReadonlySet<number> };
  /** The rows and columns whose tokens were forced in the output. */
  forced: { rows: ReadonlySet<number>; columns: ReadonlySet<number> };
}

/** Find the marks of a map: of some attentions, of one head of them or of all. */
export function findMarks(trace: TraceDocument, entries: readonly AttentionEntry[], head: number | null, rowSpans: readonly Span[], columnSpans: readonly Span[]): Marks {
  const names = new Set(entries.map((entry) => entry.name));
  const isShown = (edit: Edit): boolean => names.has(String(edit["attention"])) && (head === null || typeof edit["head"] !== "number" || edit["head"] === head);
  const shown = trace.edits.filter(isShown);
  const findRows = ({ step }: Edit): number[] => (typeof step === "number" ? findSpans(rowSpans, [step]) : [...rowSpans.keys()]);
  const heads = entries.flatMap((entry) => (head === null ? [...readHeads(entry).keys()] : [head]).map((each) => isAblated(trace.edits, entry.name, each)));
  const [masked, forced] = [[...findMasked(trace)], [...findForced(trace)]];
  const role = entries[0]?.role;
  return {
    rows: shown.filter(setsRow).flatMap(findRows),
    cells: shown
      .filter((edit) => edit.kind === "mask_keys")
      .flatMap((edit) => findRows(edit).flatMap((row) => findSpans(columnSpans, edit["keys"] as number[]).map((column) => ({ row, column })))),
    off: heads.filter(Boolean).length,
    isOff: heads.length > 0 && heads.every(Boolean),
    struck: {
      rows: new Set(role === "encoder-self" ? findSpans(rowSpans, masked) : []),
      columns: new Set(role === "decoder-self" ? [] : findSpans(columnSpans, masked)),
    },
    forced: {
      rows: new Set(role === "encoder-self" ? [] : findSpans(rowSpans, forced)),
      // The decoder reads a token at the step after it.
      columns: new Set(role === "decoder-self" ? findSpans(columnSpans, forced.map((step) => step + 1)) : []),
    },
  };
}

/** Return the indices of the spans that contain a token. */
function findSpans(spans: readonly Span[], tokens: readonly number[]): number[] {
  return [...spans.entries()].flatMap(([index, [start, end]]) => (tokens.some((token) => token >= start && token < end) ? [index] : []));
}

/** Return the steps whose tokens are forced. */
export const findForced = (trace: TraceDocument): ReadonlySet<number> =>
  new Set(trace.edits.filter((edit) => edit.kind === "force_token").map((edit) => Number(edit["step"])));

/** Return the source tokens that edits have hidden. */
export function findMasked({ edits, source }: TraceDocument): ReadonlySet<number> {
  const slots = edits.flatMap((edit, index) => {
    if (edit.kind !== "mask_source") return [];
    const later = edits.slice(index + 1).filter((each) => movesSource(each) && isToken(each) === isToken(edit));
    const position = later.reduce<number | null>(movePosition, Number(edit["position"]));
    if (position === null) return [];
    return isToken(edit) ? [position] : findWordSlots(source, position);
  });
  return new Set(slots);
}

/** Return where a word or a token is after an edit of the source; null if it was replaced or deleted. */
function movePosition(position: number | null, edit: Edit): number | null {
  const changed = Number(edit["position"]);
  if (position === null || position < changed) return position;
  if (position === changed) return null;
  const text = String(edit["text"] ?? "");
  return position - 1 + (isToken(edit) ? [...text].length : listSourceWords(text).length);
}

function findWordSlots({ text, offsets }: TraceDocument["source"], position: number): number[] {
  const word = listSourceWords(text)[position];
  return word ? offsets.flatMap(([from, to], slot) => (from < word.end && to > word.start ? [slot] : [])) : [];
}

/** Return for each element of two lists whether it is missing in the other, by a longest common subsequence. */
export function compareLists(before: readonly string[], after: readonly string[]): [before: boolean[], after: boolean[]] {
  const pairs = align(before, after);
  const [left, right] = [new Set(pairs.map(([index]) => index)), new Set(pairs.map(([, index]) => index))];
  return [before.map((_, index) => !left.has(index)), after.map((_, index) => !right.has(index))];
}
