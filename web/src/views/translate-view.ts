/** The tab Translate: the words of the source and of the output, and ribbons between them as wide as the weights. */
import { css, html, nothing, svg, type PropertyValues, type TemplateResult } from "lit";
import { customElement, query, state } from "lit/decorators.js";
import { guard } from "lit/directives/guard.js";
import { at } from "../arrays.js";
import { compareLists, findForced, findMasked } from "../edits.js";
import { AlignmentFigure, framePaper, LinesFigure, WIDEST_ROW, type Figure } from "../figures.js";
import { createPictures, drawWeighted, findHeight } from "../picture.js";
import { drawRibbon, isStacked, layRibbons, type Box, type Ribbon } from "../ribbons.js";
import { findSpan, selectMap, type MapChoice, type SelectedMap } from "../selection.js";
import { shared } from "../styles.js";
import { describeHypothesis, formatPercent, labelToken, listPossible, toProbability, type Candidate, type Step } from "../trace.js";
import { findWritten, isSpace, listSourceWords, listTokens, type SourceWord, type Span } from "../words.js";
import { View } from "./base.js";
import { renderLayerAndHead, renderRefusal, renderSegments, renderUnits } from "./controls.js";

type Side = "source" | "output";

/** A token of the source or of the output. */
interface Token {
  side: Side;
  index: number;
}

/** The ribbons of longer outputs are drawn for the focused word only. */
const MOST_ROWS = 80;
/** Alternatives that are less likely are listed on request. */
const UNLIKELY = 0.001;

const PICTURE_WIDTH = 360;

@customElement("translate-view")
export class TranslateView extends View {
  static override styles = [
    shared,
    css`
      .legend { flex: 1; min-width: 16em; max-width: none; }
      .lines { position: relative; display: grid; grid-template-columns: minmax(0, 1fr); row-gap: clamp(84px, 15vh, 150px); }
      .pictured { row-gap: var(--space-3); column-gap: var(--space-4); }
      .text { position: relative; display: flex; flex-wrap: wrap; gap: 10px 0.3em; font-size: var(--size-4); justify-content: center; }
      .short .text { font-size: var(--size-5); }
      .small .text, .small .text.ghost { font-size: var(--size-3); }
      .long .text { gap: 8px 0.3em; justify-content: start; align-content: start; }
      @media (min-width: 900px) {
        .long { grid-template-columns: repeat(2, minmax(0, 1fr)); column-gap: clamp(90px, 12vw, 200px); align-items: center; }
        .pictured { grid-template-columns: max-content minmax(0, 1fr); align-items: center; }
      }
      .word { display: inline-flex; flex-wrap: wrap; min-width: 0; background: var(--panel); border: 1px solid var(--line-strong); border-radius: 8px; overflow: clip; }
      .word.space { border-color: transparent; background: none; color: var(--muted); margin-inline: -0.25em; }
      .word.chosen { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
      .word button {
        font-size: inherit; line-height: 1.35; border: 0; border-radius: 0; background: color-mix(in srgb, var(--accent) var(--weight, 0%), transparent);
        padding: 1px 1px 3px; min-height: 0; min-width: 0.7em; position: relative; white-space: pre; transition: background 120ms;
      }
      .word button:first-child { padding-inline-start: 7px; }
      .word button:last-child { padding-inline-end: 7px; }
      .word.space button { padding-inline: 0; font-size: 0.6em; }
      .word button:focus-visible { outline-offset: -2px; }
      .output .word button { padding-bottom: 8px; }
      .output .word button::after {
        content: ""; position: absolute; inset: auto 1px 0; height: 5px;
        background: linear-gradient(to right, var(--accent) var(--share), var(--line-strong) var(--share));
      }
      .word button[aria-current="true"] { background: var(--accent-fill); color: var(--on-accent); }
      .word button.masked { text-decoration: line-through; text-decoration-thickness: 2px; text-decoration-color: var(--edit); color: var(--muted); }
      .word button.changed:not([aria-current="true"]) { background: color-mix(in srgb, var(--edit) 22%, transparent); }
      .outputs { display: grid; gap: var(--space-2); align-content: center; min-width: 0; }
      .text.ghost { color: var(--muted); font-size: var(--size-4); gap: 4px 0.3em; align-items: baseline; }
      .ghost del { text-decoration: none; border-radius: 4px; background: color-mix(in srgb, var(--edit) 22%, transparent); }
      svg.ribbons { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; pointer-events: none; }
      .ribbons path { fill: none; stroke: var(--accent); }
      .ribbons .weak { opacity: 0.16; }
      .ribbons .strong { opacity: 0.75; }
      canvas { display: block; border-radius: 8px; max-width: 100%; }
      .below { display: grid; gap: var(--space-3); grid-template-columns: minmax(280px, 1fr) minmax(260px, 1fr); align-items: start; }
      @media (max-width: 800px) { .below { grid-template-columns: minmax(0, 1fr); } }
      .edits input { flex: 1; min-width: 8em; max-width: 14em; min-height: 34px; padding: 4px 10px; background: var(--control); border: 1px solid var(--line-strong); border-radius: 8px; }
      .choices { display: grid; gap: 4px; margin: 0; padding: 0; list-style: none; }
      .choices button { display: grid; grid-template-columns: 6em 1fr 4.4em; gap: 10px; width: 100%; align-items: center; text-align: start; padding: 3px 10px; border-color: transparent; background: none; }
      .choices button:hover:not(:disabled) { border-color: var(--line-strong); background: var(--hover); }
      .choices button:disabled { opacity: 1; }
      .choices button[aria-pressed="true"] { border-color: var(--accent); background: var(--tint); font-weight: 650; }
      .choices bdi { overflow: hidden; text-overflow: ellipsis; white-space: pre; }
      .choices .number { text-align: end; }
      .bar { height: 10px; border-radius: 3px; background: var(--line); overflow: hidden; }
      .bar i { display: block; height: 100%; background: var(--muted); }
      [aria-pressed="true"] .bar i { background: var(--accent); }
      summary { cursor: pointer; color: var(--muted); font-size: var(--size-1); }
      .hypotheses { margin: 0; padding-inline-start: 1.5em; display: grid; gap: 6px; }
      .hypotheses button { text-align: start; vertical-align: baseline; }
      .hypotheses button[aria-pressed="true"] { border-color: var(--accent); background: var(--tint); }
    `,
  ];

  /** The token under the pointer, or with the focus of the keyboard. */
  @state() private pointed: Token | null = null;
  /** Where the words of the map are drawn. */
  @state() private boxes: Record<Side, Box[]> = { source: [], output: [] };
  /** Whether single tokens are edited, also where they are parts of words. */
  @state() private editsTokens = false;
  @query(".lines") private lines!: HTMLElement | null;
  @query("canvas") private canvas!: HTMLCanvasElement | null;

  private map: SelectedMap | null = null;
  private ribbons: Ribbon[] = [];
  /** What the map is computed from, and what it was when the words were measured. */
  private selected: readonly unknown[] = [];
  private measured: readonly unknown[] = [];
  private readonly observer = new ResizeObserver(() => this.measure());

  override createPaperFigure(fontSize: number): Figure | null {
    const { map, store: { trace, state: { hypothesis, smooth } } } = this;
    if (!trace?.hypotheses[hypothesis]) return null;
    if (trace.source.grid) return createPictures(trace, hypothesis, map?.weights ?? null, smooth, fontSize);
    if (!map) return new AlignmentFigure({ weights: null, source: trace.source.tokens, output: this.output, probabilities: this.output.map((_, index) => this.findProbability(index)), fontSize });
    const { weights, axes, rowSpans } = map;
    const probabilities = rowSpans.map((span) => listTokens(span).reduce((product, index) => product * this.findProbability(index), 1));
    const figure = new AlignmentFigure({ weights, source: axes.columns, output: axes.rows, probabilities, fontSize });
    const isLong = figure.width > WIDEST_ROW * fontSize;
    return isLong ? new LinesFigure({ ...framePaper(fontSize), weights, axes }) : figure;
  }

  /** A step of the output; undefined if the document contains weights only. */
  private findStep(index: number): Step | undefined {
    return this.store.trace!.steps[this.store.state.hypothesis]?.[index];
  }

  private findProbability(index: number): number {
    return toProbability(this.findStep(index)?.log_prob ?? null);
  }

  private get output(): readonly string[] {
    return this.store.trace!.hypotheses[this.store.state.hypothesis]?.tokens ?? [];
  }

  /** The cross-attention that the ribbons show: all layers and heads together, unless the reader has chosen. */
  private get choice(): MapChoice {
    return this.store.choose({ role: "cross", layer: this.store.state.layer ?? "mean" });
  }

  protected override willUpdate(changed: PropertyValues): void {
    const { trace } = this.store;
    if (!trace) return;
    const selected = [trace, ...Object.values(this.choice)];
    const isSelected = selected.every((each, index) => each === this.selected[index]);
    if (!isSelected) {
      this.selected = selected;
      this.map = selectMap(trace, this.choice);
    }
    if (!isSelected) this.ribbons = [];
    else if (changed.has("boxes")) this.ribbons = layRibbons(this.map!.weights, this.boxes.source, this.boxes.output);
  }

  protected override render(): TemplateResult {
    const { trace } = this.store;
    if (!trace) return html``;
    const output = trace.hypotheses[this.store.state.hypothesis];
    const { grid } = trace.source;
    return html`
      <div class="stack">
        <section class="panel stack" aria-label="Alignment">
          <div class="row"><p class="muted small legend">${this.describeLines()}</p>${this.map ? renderLayerAndHead(this.store, this.choice) : ""}${this.renderUnits()}</div>
          <div class="lines ${grid ? "pictured" : this.size}">
            ${grid ? this.renderPicture() : html`${this.renderRibbons()}${this.renderSource()}`}
            ${this.renderOutput()}
          </div>
          <p class="muted small number">${output ? describeHypothesis(output) : ""}${trace.seconds === undefined ? "" : `, computed in ${trace.seconds.toFixed(2)} s`}</p>
        </section>
        <div class="below">
          ${this.renderAlternatives()}
          <div class="stack">${this.renderSourceEdits()} ${this.renderHypotheses()}</div>
        </div>
      </div>
    `;
  }

  private describeLines(): string {
    const { grid } = this.store.trace!.source;
    const line = "The filled part of the line under an output token is its probability.";
    if (!this.map) return `This model has no cross-attention. ${line}`;
    return `${this.map.title}. ${grid ? "The brighter a part of the picture, the larger its attention weight for the selected word." : "The wider a ribbon, the larger the attention weight."} ${line}`;
  }

  private get size(): string {
    const longest = Math.max(this.store.trace!.source.text.length, this.output.join("").length);
    return longest > 150 ? "small long" : longest > 75 ? "small" : longest > 40 ? "" : "short";
  }

  private renderUnits(): TemplateResult | string {
    const { map } = this;
    if (!map || this.store.trace!.source.grid) return "";
    const hasWords = !this.store.words || map.rowSpans.length < this.output.length;
    return hasWords ? renderUnits(this.store) : "";
  }

  /** The token whose ribbons are strong. */
  private get active(): Token {
    return this.pointed ?? { side: "output", index: this.store.row };
  }

  /** The row or the column of the map that contains the active token. */
  private get span(): number {
    const { side, index } = this.active;
    return findSpan(side === "output" ? this.map!.rowSpans : this.map!.columnSpans, index);
  }

  private isStrong({ row, column }: Ribbon): boolean {
    return (this.active.side === "output" ? row : column) === this.span;
  }

  private renderRibbons(): TemplateResult | string {
    const { ribbons, boxes } = this;
    if (!ribbons.length) return "";
    const stacked = isStacked(boxes.source, boxes.output);
    const draw = (ribbon: Ribbon): unknown => svg`<path d=${drawRibbon(ribbon, stacked)} stroke-width=${ribbon.width.toFixed(1)} data-row=${ribbon.row} data-column=${ribbon.column}></path>`;
    return html`<svg class="ribbons" aria-hidden="true">
      <g class="weak">${guard([ribbons], () => (boxes.output.length > MOST_ROWS ? nothing : ribbons.map(draw)))}</g>
      <g class="strong">${ribbons.filter((ribbon) => this.isStrong(ribbon)).map(draw)}</g>
    </svg>`;
  }

  /** The weight between the active token and another token of the other side, or of its word. */
  private findWeight(side: Side, index: number): number {
    const { map, active } = this;
    if (!map || side === active.side) return 0;
    const weight = side === "source" ? map.weights.at(this.span, findSpan(map.columnSpans, index)) : map.weights.at(findSpan(map.rowSpans, index), this.span);
    return weight || 0;
  }

  private renderSource(): TemplateResult {
    const { tokens, text } = this.store.trace!.source;
    const { word } = this;
    const masked = findMasked(this.store.trace!);
    const isChosen = ([start, end]: readonly [number, number] = [0, 0]): boolean => word !== null && this.store.client.isLive && start < word.end && end > word.start;
    return this.renderLine("source", "Source", tokens, text, (index) => {
      const weight = this.map && this.active.side === "output" ? `, attention weight ${formatPercent(this.findWeight("source", index))}` : "";
      const kinds = [isChosen(this.store.trace!.source.offsets[index]) ? "chosen" : "", masked.has(index) ? "masked" : ""].filter(Boolean);
      return { label: `${showText(at(tokens, index))}${weight}${masked.has(index) ? ", hidden" : ""}`, kind: kinds.join(" ") };
    });
  }

  private renderOutput(): TemplateResult {
    const { output } = this;
    if (!output.length) return html`<p>The output is empty.</p>`;
    const trace = this.store.trace!;
    const forced = findForced(trace);
    const [before, changed] = this.compare();
    const line = this.renderLine("output", "Output tokens", output, at(trace.hypotheses, this.store.state.hypothesis).text, (index) => {
      const probability = this.findStep(index) ? `, probability ${formatPercent(this.findProbability(index))}` : "";
      const kinds = [forced.has(index) ? "forced" : "", changed[index] ? "changed" : ""].filter(Boolean);
      return { label: [`${showText(at(output, index))}${probability}`, ...kinds].join(", "), kind: kinds.join(" ") };
    });
    return html`<div class="outputs">${line}${trace.changes ? this.renderGhost(trace.changes, before) : ""}</div>`;
  }

  /** Compare the output without and with the edits. */
  private compare(): [before: boolean[], after: boolean[]] {
    const { changes } = this.store.trace!;
    return changes ? compareLists(changes.tokens, this.output) : [[], []];
  }

  /** The output without the edits. */
  private renderGhost({ text, tokens }: { text: string; tokens: string[] }, missing: readonly boolean[]): TemplateResult {
    return html`<div class="text ghost" dir="auto" role="group" aria-label="Output without the edits" id="ghost">
      <span class="small">before</span>
      ${findWritten(tokens, text).map(([start, end]) => html`<span>${tokens.slice(start, end).map((token, offset) => (missing[start + offset] ? html`<del>${showText(token)}</del>` : showText(token)))}</span>`)}
      ${text ? "" : "(empty)"}
    </div>`;
  }

  /** A line of words: the tokens of a word are in one box. */
  private renderLine(side: Side, name: string, tokens: readonly string[], text: string, describe: (index: number) => { label: string; kind: string }): TemplateResult {
    const current = this.findCurrent(side);
    const point = (event: Event): void => {
      const { index } = (event.target as HTMLElement).dataset;
      if (index) this.pointed = { side, index: Number(index) };
    };
    const leave = (): void => void (this.pointed = null);
    const renderToken = (token: string, index: number): TemplateResult => {
      const { label, kind } = describe(index);
      return html`<button type="button" class=${kind} data-index=${index} tabindex=${index === current ? 0 : -1} aria-label=${label} title=${label}
        aria-current=${index === current && side === "output"} .style=${`--weight:${this.tint(side, index)}%;--share:${side === "output" ? 100 * this.findProbability(index) : 0}%`}
        @click=${() => this.focusToken(side, index)}>${showText(token)}</button>`;
    };
    return html`<div class="text ${side}" dir="auto" role="group" aria-label=${name} @pointerover=${point} @focusin=${point} @pointerleave=${leave} @focusout=${leave} @keydown=${(event: KeyboardEvent) => this.moveToken(event, side, tokens.length)}>
      ${findWritten(tokens, text).map(([start, end]) => html`<span class="word ${isSpace(at(tokens, start)) ? "space" : ""}">${tokens.slice(start, end).map((token, offset) => renderToken(token, start + offset))}</span>`)}
    </div>`;
  }

  /** Color tokens by their weight, and the active token. */
  private tint(side: Side, index: number): number {
    if (this.active.side === side) return this.active.index === index ? 25 : 0;
    return Math.round(65 * Math.min(1, this.findWeight(side, index)));
  }

  private findCurrent(side: Side): number {
    return side === "output" ? this.store.row : this.sourceToken;
  }

  /** The focused source token. */
  private get sourceToken(): number {
    return Math.min(this.store.findColumn(this.map), this.store.trace!.source.tokens.length - 1);
  }

  private focusToken(side: Side, index: number): void {
    this.store.show(side === "output" ? { row: index } : { column: index });
  }

  private moveToken(event: KeyboardEvent, side: Side, count: number): void {
    const current = this.findCurrent(side);
    const targets: Record<string, number> = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: count - 1 };
    const target = targets[event.key];
    if (target === undefined || target < 0 || target >= count) return;
    event.preventDefault();
    this.focusToken(side, target);
    void this.updateComplete.then(() => this.shadowRoot!.querySelector<HTMLElement>(`.${side} [data-index="${target}"]`)?.focus());
  }

  private renderPicture(): TemplateResult {
    const { picture } = this.store.trace!.source;
    if (!picture) return html`<p>The picture is not part of this document.</p>`;
    return html`<div class="stack">
      <canvas width=${PICTURE_WIDTH} height=${findHeight(picture, PICTURE_WIDTH)} role="img" aria-label=${`The picture under the attention weights of “${labelToken(this.output[this.active.index] ?? "")}”`}></canvas>
      <div class="row"><button type="button" @click=${() => this.store.show({ tab: "image" })}>Brush cells out</button></div>
    </div>`;
  }

  protected override updated(changed: PropertyValues): void {
    super.updated(changed);
    if (this.lines) this.observer.observe(this.lines);
    if (this.measured !== this.selected) this.measure();
    const { picture, grid } = this.store.trace?.source ?? {};
    if (!this.canvas || !picture || !grid) return;
    const { side, index } = this.active;
    const weights = side === "output" && this.map && index < this.map.weights.rows ? this.map.weights.row(index) : null;
    drawWeighted(this.canvas.getContext("2d")!, { picture, grid, weights, isSmooth: this.store.state.smooth });
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.observer.disconnect();
  }

  /** Measure where the words of the map are drawn. The ribbons follow. */
  private measure(): void {
    this.measured = this.selected;
    const { map, lines } = this;
    // A view that is being removed has no size.
    if (!map || !lines?.clientWidth || this.store.trace!.source.grid) return;
    const { left, top } = lines.getBoundingClientRect();
    const find = (side: Side, spans: readonly Span[], tokens: readonly string[]): Box[] => {
      const drawn = [...lines.querySelectorAll(`.${side} button`)];
      return spans.map((span) => {
        const all = listTokens(span);
        const visible = all.filter((index) => !isSpace(at(tokens, index)));
        const rects = (visible.length ? visible : all).map((index) => at(drawn, index).getBoundingClientRect());
        const [x, y] = [Math.min(...rects.map((rect) => rect.left)), Math.min(...rects.map((rect) => rect.top))];
        return { left: x - left, top: y - top, width: Math.max(...rects.map((rect) => rect.right)) - x, height: Math.max(...rects.map((rect) => rect.bottom)) - y };
      });
    };
    this.boxes = { source: find("source", map.columnSpans, this.store.trace!.source.tokens), output: find("output", map.rowSpans, this.output) };
  }

  /** What is edited: the word of the focused source token, or the token itself. */
  private get word(): (SourceWord & { unit: "word" | "token"; position: number }) | null {
    const { source } = this.store.trace!;
    const slot = this.sourceToken;
    const offset = source.offsets[slot];
    if (!offset || source.grid) return null;
    const words = listSourceWords(source.text);
    if (this.editsTokens || words.length < 2) return { unit: "token", position: slot, text: at(source.tokens, slot), start: offset[0], end: offset[1] };
    // A space belongs to the word after it.
    const position = Math.max(0, words.findIndex((word) => word.end >= offset[1]));
    return { unit: "word", position, ...at(words, position) };
  }

  private renderSourceEdits(): TemplateResult | string {
    const { word } = this;
    if (!word || !this.store.client.isLive) return "";
    const { unit, position, start } = word;
    const { tokens, text, offsets } = this.store.trace!.source;
    const tokenName = tokens.every((token) => [...token].length < 2) ? "Letter" : "Token";
    const change = (kind: string, options = {}): void => {
      // The weights change, but the focus stays: on the first token of the word, which may have fewer tokens then.
      const column = offsets.findIndex((offset) => offset[0] >= start);
      void this.store.addEdit({ kind, position, unit, ...options }, "source", { column });
    };
    const replace = (event: Event): void => {
      event.preventDefault();
      const input = this.shadowRoot!.querySelector<HTMLInputElement>("#replacement")!;
      if (!input.value) return;
      change("replace_source", { text: input.value });
      input.value = "";
    };
    const move = (offset: number): void => this.moveWord(offset);
    return html`<section class="panel stack"><div class="row"><h2>Change the source</h2>
      ${listSourceWords(text).length > 1 ? renderSegments("What is changed", [["word", "Word"], ["token", tokenName]], unit, (value) => (this.editsTokens = value === "token")) : ""}</div>
      ${this.renderReading(word)}
      <form class="row edits" aria-label="Edit the source" @submit=${replace}>
      <button type="button" class="quiet" aria-label=${`Previous source ${unit}`} @click=${() => move(-1)}>←</button>
      <bdi><b>${labelToken(word.text)}</b></bdi>
      <button type="button" class="quiet" aria-label=${`Next source ${unit}`} @click=${() => move(1)}>→</button>
      <button type="button" id="mask-source" @click=${() => change("mask_source")}>Hide</button>
      <button type="button" id="delete-source" @click=${() => change("delete_source")}>Delete</button>
      <input id="replacement" aria-label=${`Replace ${word.text} with`} placeholder="Replace with" maxlength="200" />
      <button id="replace-source">Replace</button>
    </form><p class="muted small">Hide: the model reads the unknown token in its place. Delete: the source is shorter.</p>${renderRefusal(this.store, "source")}</section>`;
  }

  /** How much the focused output reads what is edited. */
  private renderReading({ start, end, text }: SourceWord): TemplateResult | string {
    const { map, store: { row, trace } } = this;
    if (!map?.weights.rows) return "";
    const output = findSpan(map.rowSpans, row);
    const slots = trace!.source.offsets.flatMap(([from, to], slot) => (from < end && to > start ? [slot] : []));
    const masked = findMasked(trace!);
    const columns = new Set(slots.map((slot) => findSpan(map.columnSpans, slot)));
    const weight = [...columns].reduce((sum, column) => sum + map.weights.at(output, column), 0);
    return html`<p class="number" id="reading">Output <bdi>“${labelToken(at(map.axes.rows, output))}”</bdi> reads ${slots.some((slot) => masked.has(slot)) ? "the hidden " : ""}<bdi>“${labelToken(text)}”</bdi> with an attention weight of <b>${formatPercent(weight)}</b>.</p>`;
  }

  private moveWord(offset: number): void {
    const { word } = this;
    const { source } = this.store.trace!;
    const edge = offset > 0 ? word!.end : word!.start;
    const isWord = (slot: number): boolean => !/^\s+$/u.test(at(source.tokens, slot));
    const slot =
      offset > 0
        ? source.offsets.findIndex(([start], index) => start >= edge && isWord(index))
        : source.offsets.findLastIndex(([, end], index) => end <= edge && isWord(index));
    if (slot >= 0) this.store.show({ column: slot });
  }

  private renderAlternatives(): TemplateResult | string {
    const trace = this.store.trace!;
    const { row, state: { hypothesis } } = this.store;
    const step = trace.steps[hypothesis]?.[row];
    if (!step) return "";
    const possible = listPossible(step);
    const isLikely = ({ id, log_prob }: Candidate): boolean => id === step.id || toProbability(log_prob) >= UNLIKELY;
    const likely = possible.filter(isLikely);
    const unlikely = possible.filter((candidate) => !isLikely(candidate));
    return html`<section class="panel stack" aria-label="Alternatives">
      <h2>Alternatives to <bdi>“${showText(step.token)}”</bdi></h2>
      <p class="muted small">${this.store.client.isLive ? "Choose a token: the output before it is kept, and the model decodes the rest again." : "The most likely tokens at this position."}</p>
      <ol class="choices">${likely.map((candidate) => this.renderCandidate(candidate, candidate.id === step.id, row))}</ol>
      ${unlikely.length ? html`<details><summary>${unlikely.length} more, below ${formatPercent(UNLIKELY)} each</summary><ol class="choices">${unlikely.map((candidate) => this.renderCandidate(candidate, candidate.id === step.id, row))}</ol></details>` : ""}
      ${this.store.client.isLive ? this.renderOtherToken(row) : ""}
      ${renderRefusal(this.store, "alternatives")}
    </section>`;
  }

  private renderCandidate(candidate: Candidate, isChosen: boolean, step: number): TemplateResult {
    const probability = toProbability(candidate.log_prob);
    return html`<li><button type="button" aria-pressed=${isChosen} ?disabled=${!this.store.client.isLive || isChosen}
      @click=${() => this.force(step, candidate.id)}>
      <bdi>${labelToken(candidate.token)}</bdi><span class="bar"><i .style=${`width:${100 * probability}%`}></i></span><span class="number small">${formatPercent(probability)}</span>
    </button></li>`;
  }

  private renderOtherToken(step: number): TemplateResult {
    const submit = (event: Event): void => {
      event.preventDefault();
      const token = this.shadowRoot!.querySelector<HTMLInputElement>("#other-token")!.value;
      if (token) this.force(step, token);
    };
    return html`<form class="row edits" aria-label="Force another token" @submit=${submit}>
      <input id="other-token" aria-label="Another token of the vocabulary" placeholder="Another token" maxlength="100" />
      <button id="force-token">Force</button>
      <button type="button" id="force-end" @click=${() => this.force(step, "</s>")}>End the output here</button>
    </form>`;
  }

  /** Keep the output before this step, and decode on after another token. */
  private force(step: number, token: number | string): void {
    this.store.addEdit({ kind: "force_token", step, token }, "alternatives");
  }

  private renderHypotheses(): TemplateResult | string {
    const { hypotheses } = this.store.trace!;
    if (hypotheses.length < 2) return "";
    return html`<section class="panel stack" aria-label="Hypotheses">
      <h2>Hypotheses of beam search</h2>
      <ol class="hypotheses">
        ${hypotheses.map(
          (each, index) => html`<li><button type="button" class="quiet" aria-pressed=${index === this.store.state.hypothesis} @click=${() => this.store.show({ hypothesis: index })}><bdi>${each.text}</bdi> <span class="muted number small">${describeHypothesis(each)}</span></button></li>`,
        )}
      </ol>
    </section>`;
  }
}


/** The text of a token inside a word. */
function showText(token: string): string {
  return labelToken(token.replace(/^▁(?=.)/u, ""));
}
