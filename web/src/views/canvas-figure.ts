/** A drawing on a canvas, with a focused cell that the arrow keys move. */
import { css, html, LitElement, type PropertyValues, type TemplateResult } from "lit";
import { customElement, property, query } from "lit/decorators.js";
import { paint, type Cell, type Figure } from "../figures.js";
import { currentPalette } from "../palette.js";

/** A figure whose points belong to cells. */
export interface CellFigure extends Figure {
  find(x: number, y: number): Cell | null;
}

export type CellEvent = CustomEvent<Cell & { extend: boolean }>;

const MOVES: Record<string, [number, number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  PageUp: [-10, 0],
  PageDown: [10, 0],
};

/**
 * Fires `cell-focus` when the pointer or a key moves to a cell, and `cell-select` for a click, Enter or the space bar.
 */
@customElement("canvas-figure")
export class CanvasFigure extends LitElement {
  static override styles = css`
    :host { display: block; overflow: auto; max-width: 100%; border-radius: 6px; }
    div { display: inline-block; outline-offset: -2px; }
    div:focus-visible { outline: 2.5px solid var(--accent); border-radius: 4px; }
    canvas { display: block; cursor: crosshair; }
  `;

  @property({ attribute: false }) figure: CellFigure | null = null;
  @property({ attribute: false }) focused: Cell = { row: 0, column: 0 };
  @property({ attribute: false }) size: { rows: number; columns: number } = { rows: 0, columns: 0 };
  /** Whether the pointer moves the focus. */
  @property({ type: Boolean }) hovers = true;
  @property() label = "";
  @property() description = "";
  @query("canvas") private canvas!: HTMLCanvasElement;

  protected override render(): TemplateResult {
    return html`<div tabindex="0" role="application" aria-roledescription="matrix" aria-label=${`${this.label}. ${this.description}`} @keydown=${this.move}>
      <canvas aria-hidden="true" @pointermove=${this.point} @click=${this.select}></canvas>
    </div>`;
  }

  protected override updated(_changed: PropertyValues): void {
    if (this.figure) paint(this.canvas, this.figure, currentPalette());
  }

  private find(event: PointerEvent | MouseEvent): Cell | null {
    const bounds = this.canvas.getBoundingClientRect();
    return this.figure?.find(event.clientX - bounds.left, event.clientY - bounds.top) ?? null;
  }

  private point(event: PointerEvent): void {
    const cell = this.hovers && this.find(event);
    if (cell && (cell.row !== this.focused.row || cell.column !== this.focused.column)) this.fire("cell-focus", cell, false);
  }

  private select(event: MouseEvent): void {
    const cell = this.find(event);
    if (cell) this.fire("cell-select", cell, event.shiftKey || event.ctrlKey || event.metaKey);
  }

  private move(event: KeyboardEvent): void {
    const { rows, columns } = this.size;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.fire("cell-select", this.focused, event.key === " " || event.shiftKey);
      return;
    }
    const clamp = (value: number, count: number): number => Math.max(0, Math.min(count - 1, value));
    const target = this.findTarget(event.key, columns);
    if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.fire("cell-focus", { row: clamp(target[0], rows), column: clamp(target[1], columns) }, false);
  }

  private findTarget(key: string, columns: number): [number, number] | null {
    const { row, column } = this.focused;
    if (key === "Home") return [row, 0];
    if (key === "End") return [row, columns - 1];
    const move = MOVES[key];
    return move ? [row + move[0], column + move[1]] : null;
  }

  private fire(name: string, cell: Cell, extend: boolean): void {
    this.dispatchEvent(new CustomEvent(name, { detail: { ...cell, extend } }));
  }
}
