/** The tab Image: the picture under the weights of each word. Cells can be brushed out. */
import { css, html, type PropertyValues, type TemplateResult } from "lit";
import { customElement, query, state } from "lit/decorators.js";
import type { EncodedArray } from "../arrays.js";
import { findForced } from "../edits.js";
import type { Figure } from "../figures.js";
import { createPictures, createPictureUrl, drawWeighted, SHADES, type Weighted } from "../picture.js";
import { selectMap, type SelectedMap } from "../selection.js";
import { shared } from "../styles.js";
import { formatPercent } from "../trace.js";
import { joinWord } from "../words.js";
import { View } from "./base.js";
import { renderMapControls, renderRefusal, renderSegments } from "./controls.js";
import "./scale-legend.js";

/** The space that is left for what is above a picture. */
const ABOVE = "340px";

@customElement("image-view")
export class ImageView extends View {
  static override styles = [
    shared,
    css`
      .body { display: grid; grid-template-columns: minmax(0, 5fr) minmax(260px, 2fr); gap: var(--space-3); align-items: start; }
      @media (max-width: 900px) { .body { grid-template-columns: minmax(0, 1fr); } }
      .pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(240px, 100%), 1fr)); gap: var(--space-3); }
      figure { margin: 0; display: grid; gap: var(--space-1); align-content: start; }
      .picture { position: relative; cursor: crosshair; touch-action: none; border-radius: 8px; overflow: hidden; }
      img, canvas { display: block; width: 100%; height: 100%; }
      .picture i { position: absolute; border: 2px solid var(--accent); outline: 1px solid var(--panel); outline-offset: -3px; pointer-events: none; }
      .words { font-size: var(--size-4); line-height: 1.7; }
      .words button { font-size: inherit; min-height: 0; padding: 0 6px; border: 0; background: none; }
      .words button[aria-pressed="true"] { background: var(--accent-fill); color: var(--on-accent); }
    `,
  ];

  @state() private brushed: readonly number[] = [];
  @state() private cursor = 0;
  private url = "";
  private drawn: EncodedArray | null = null;
  @query("canvas") private canvas!: HTMLCanvasElement;

  private get map(): SelectedMap | null {
    const { trace } = this.store;
    return trace && selectMap(trace, this.store.choose({ role: "cross", words: false }));
  }

  private get weights(): Float64Array | null {
    return this.readRow(this.store.row);
  }

  private readRow(row: number): Float64Array | null {
    const { map } = this;
    return map && row < map.weights.rows ? map.weights.row(row) : null;
  }

  private weigh(weights: Float64Array | null): Weighted | null {
    const { trace, state: { smooth } } = this.store;
    if (!trace?.source.picture || !trace.source.grid) return null;
    return { picture: trace.source.picture, grid: trace.source.grid, weights, isSmooth: smooth };
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const { trace, state: { hypothesis, smooth } } = this.store;
    return trace && createPictures(trace, hypothesis, this.map?.weights ?? null, smooth, fontSize);
  }

  protected override render(): TemplateResult {
    const { trace } = this.store;
    if (!trace?.source.picture || !trace.source.grid) return html`<p class="panel">Open an image to describe it.</p>`;
    const { row, state: { hypothesis } } = this.store;
    const tokens = trace.hypotheses[hypothesis]?.tokens ?? [];
    const weight = this.weights?.[this.cursor] ?? 0;
    const forced = findForced(trace);
    const word = tokens[row] === undefined ? "" : ` of “${joinWord([tokens[row]])}”`;
    return html`<div class="stack">
      <tool-bar class="row" aria-label="What is shown">
        ${renderSegments("Weights", [["smooth", "Smooth"], ["grid", "Grid"]], this.store.state.smooth ? "smooth" : "grid", (value) => this.store.show({ smooth: value === "smooth" }))}
        ${renderMapControls(this.store)}
      </tool-bar>
      <div class="body">
        <section class="panel stack" aria-label="Picture">
          <div class="pictures">
            ${this.renderPicture("Image", html`<img src=${this.url} alt="The image as the model reads it" draggable="false" />`)}
            ${this.renderPicture(
              html`Weights<bdi>${word}</bdi>`,
              html`<canvas tabindex="0" role="application" aria-roledescription="picture" @keydown=${this.move}
                aria-label="The picture under the weights of the selected word. Arrow keys move between cells${this.store.client.isLive ? ", the space bar brushes a cell out" : ""}"></canvas>`,
            )}
          </div>
          ${this.map ? html`<scale-legend .scale=${{ ...SHADES }}></scale-legend>` : ""}
        </section>
        <section class="panel stack" aria-label="Caption">
          <p class="muted small">Choose a word to see what the model looks at</p>
          <div class="words">${tokens.length ? "" : html`<p class="muted">The caption is empty.</p>`}${tokens.map((token, index) => html`<button type="button" class=${forced.has(index) ? "forced" : ""} aria-pressed=${index === row} @click=${() => this.store.show({ row: index })}><bdi>${joinWord([token])}</bdi></button>`)}</div>
          <p class="number">Cell ${this.cursor + 1}: ${formatPercent(weight)}</p>
          ${this.store.client.isLive ? this.renderBrush() : ""}
        </section>
      </div>
    </div>`;
  }

  /** A picture as large as the window allows, with the focused cell. */
  private renderPicture(name: TemplateResult | string, content: TemplateResult): TemplateResult {
    const { picture, grid } = this.store.trace!.source;
    const [height, width] = picture!.shape;
    const [rows, columns] = grid!;
    const [left, top] = [this.cursor % columns, Math.floor(this.cursor / columns)];
    const place = `left:${(100 * left) / columns}%;top:${(100 * top) / rows}%;width:${100 / columns}%;height:${100 / rows}%`;
    return html`<figure>
      <figcaption class="muted small">${name}</figcaption>
      <div class="picture" .style=${`aspect-ratio:${width}/${height};max-width:max(240px, calc((100vh - ${ABOVE}) * ${width} / ${height}))`}
        @pointerdown=${this.brush} @pointermove=${(event: PointerEvent) => event.buttons && this.brush(event)}>${content}<i .style=${place}></i></div>
    </figure>`;
  }

  protected override willUpdate(): void {
    const picture = this.store.trace?.source.picture ?? null;
    if (picture && picture !== this.drawn) this.url = createPictureUrl(picture);
    this.drawn = picture;
  }

  /** Cells that the model shall not see. */
  private renderBrush(): TemplateResult {
    const { length } = this.brushed;
    const cells = length === 0 ? "cells" : length === 1 ? "the brushed cell" : `${length} brushed cells`;
    return html`<div class="row">
        <button type="button" class="primary" id="mask-region" ?disabled=${!length} @click=${this.apply}>Describe without ${cells}</button>
        <button type="button" ?disabled=${!length} @click=${() => (this.brushed = [])}>Clear</button>
      </div>
      ${renderRefusal(this.store, "image")}
      <p class="muted small">Brush cells with the pointer, or with the arrow keys and the space bar. Their pixels are replaced by the average color, and the model describes the picture again.</p>`;
  }

  private async apply(): Promise<void> {
    await this.store.addEdit({ kind: "mask_region", cells: [...this.brushed] }, "image");
    if (!this.store.refusal) this.brushed = [];
  }

  private brush(event: PointerEvent): void {
    const [rows, columns] = this.store.trace!.source.grid!;
    const bounds = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const row = Math.floor(((event.clientY - bounds.top) / bounds.height) * rows);
    const column = Math.floor(((event.clientX - bounds.left) / bounds.width) * columns);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return;
    this.cursor = row * columns + column;
    if (this.store.client.isLive && !this.brushed.includes(this.cursor)) this.brushed = [...this.brushed, this.cursor];
  }

  private move(event: KeyboardEvent): void {
    const [rows, columns] = this.store.trace!.source.grid!;
    const moves: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const move = moves[event.key];
    if (event.key === " " && this.store.client.isLive) {
      const isBrushed = this.brushed.includes(this.cursor);
      this.brushed = isBrushed ? this.brushed.filter((cell) => cell !== this.cursor) : [...this.brushed, this.cursor];
    } else if (move !== undefined) {
      this.cursor = Math.max(0, Math.min(rows * columns - 1, this.cursor + move));
      this.store.announce(`Row ${Math.floor(this.cursor / columns) + 1}, column ${(this.cursor % columns) + 1}: ${formatPercent(this.weights?.[this.cursor] ?? 0)}`);
    } else return;
    event.preventDefault();
  }

  protected override updated(changed: PropertyValues): void {
    super.updated(changed);
    const weighted = this.weigh(this.weights);
    if (!this.canvas || !weighted) return;
    this.canvas.width = this.canvas.clientWidth * devicePixelRatio;
    this.canvas.height = this.canvas.clientHeight * devicePixelRatio;
    const context = this.canvas.getContext("2d")!;
    const [rows, columns] = weighted.grid;
    const { width, height } = this.canvas;
    drawWeighted(context, weighted);
    context.fillStyle = "rgba(217, 130, 43, 0.75)";
    for (const cell of this.brushed) {
      context.fillRect(((cell % columns) * width) / columns, (Math.floor(cell / columns) * height) / rows, width / columns, height / rows);
    }
  }
}
