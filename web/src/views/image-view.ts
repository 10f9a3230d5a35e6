/** The tab Image: the picture under the weights of each word. Cells can be brushed out. */
import { css, html, type PropertyValues, type TemplateResult } from "lit";
import { customElement, query, state } from "lit/decorators.js";
import type { Figure } from "../figures.js";
import { isDark } from "../palette.js";
import { drawWeighted, findHeight, createPictures, SHADES, type Weighted } from "../picture.js";
import { selectMap, type SelectedMap } from "../selection.js";
import { shared } from "../styles.js";
import { formatPercent } from "../trace.js";
import { joinWord } from "../words.js";
import { View } from "./base.js";
import { renderMapControls, renderRefusal, renderSegments } from "./controls.js";
import "./scale-legend.js";

const SIZE = 480;

@customElement("image-view")
export class ImageView extends View {
  static override styles = [
    shared,
    css`
      .body { display: grid; grid-template-columns: auto minmax(260px, 1fr); gap: var(--space-3); align-items: start; }
      @media (max-width: 800px) { .body { grid-template-columns: 1fr; } }
      canvas { display: block; border-radius: 8px; cursor: crosshair; touch-action: none; max-width: 100%; }
      .words { font-size: var(--size-4); line-height: 1.7; }
      .words button { font-size: inherit; min-height: 0; padding: 0 6px; border: 0; background: none; }
      .words button[aria-pressed="true"] { background: var(--accent-fill); color: var(--on-accent); }
    `,
  ];

  @state() private brushed: readonly number[] = [];
  @state() private cursor = 0;
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
    return html`<div class="stack">
      <div class="row">
        ${renderSegments("Weights", [["smooth", "Smooth"], ["grid", "Grid"]], this.store.state.smooth ? "smooth" : "grid", (value) => this.store.show({ smooth: value === "smooth" }))}
        ${renderMapControls(this.store)}
      </div>
      <div class="body">
        <section class="panel stack" aria-label="Picture">
          <canvas width=${SIZE} height=${findHeight(trace.source.picture, SIZE)} tabindex="0" role="application" aria-roledescription="picture"
            aria-label="The picture under the weights of the selected word. Arrow keys move between cells${this.store.client.isLive ? ", the space bar brushes a cell out" : ""}"
            @pointerdown=${this.brush} @pointermove=${(event: PointerEvent) => event.buttons && this.brush(event)} @keydown=${this.move}></canvas>
          ${this.map ? html`<scale-legend .scale=${{ ...SHADES }}></scale-legend>` : ""}
        </section>
        <section class="panel stack" aria-label="Caption">
          <p class="muted small">Choose a word to see what the model looks at</p>
          <div class="words">${tokens.length ? "" : html`<p class="muted">The caption is empty.</p>`}${tokens.map((token, index) => html`<button type="button" aria-pressed=${index === row} @click=${() => this.store.show({ row: index })}><bdi>${joinWord([token])}</bdi></button>`)}</div>
          <p class="number">Cell ${this.cursor + 1}: ${formatPercent(weight)}</p>
          ${this.store.client.isLive ? this.renderBrush() : ""}
        </section>
      </div>
    </div>`;
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
    const bounds = this.canvas.getBoundingClientRect();
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
    const context = this.canvas.getContext("2d")!;
    const [rows, columns] = weighted.grid;
    const { width, height } = this.canvas;
    drawWeighted(context, weighted);
    const mark = (cell: number, color: string): void => {
      const x = ((cell % columns) * width) / columns;
      const y = (Math.floor(cell / columns) * height) / rows;
      context.fillStyle = color;
      context.fillRect(x, y, width / columns, height / rows);
    };
    this.brushed.forEach((cell) => mark(cell, "rgba(217, 130, 43, 0.75)"));
    context.strokeStyle = isDark() ? "#8ab0ff" : "#2b5fd9";
    context.lineWidth = 2;
    context.strokeRect(((this.cursor % columns) * width) / columns, (Math.floor(this.cursor / columns) * height) / rows, width / columns, height / rows);
  }
}
