/** Styles that all views share. The custom properties are defined in app.css. */
import { css } from "lit";

export const shared = css`
  :host { display: block; }
  *, *::before, *::after { box-sizing: border-box; }
  h2 { font-size: var(--size-3); font-weight: 650; margin: 0; letter-spacing: -0.01em; text-wrap: balance; }
  h3 { font-size: var(--size-2); font-weight: 600; margin: 0; }
  p { margin: 0; max-width: 70ch; }
  .muted { color: var(--muted); }
  .small { font-size: var(--size-1); }
  .number { font-variant-numeric: tabular-nums; }
  .stack { display: grid; gap: var(--space-3); align-content: start; min-width: 0; }
  .row { display: flex; flex-wrap: wrap; gap: var(--space-2); align-items: center; }
  .panel { background: var(--panel); border: 1px solid var(--line); border-radius: var(--radius); padding: var(--space-4); min-width: 0; }
  button, select, input, textarea { font: inherit; color: inherit; }
  button, select {
    background: var(--control); border: 1px solid var(--line-strong); border-radius: 8px; padding: 5px 12px; min-height: 34px; cursor: pointer;
  }
  button:hover:not(:disabled), select:hover { background: var(--hover); }
  button:disabled { opacity: 0.45; cursor: default; }
  button.primary { background: var(--accent-fill); border-color: var(--accent-fill); color: var(--on-accent); font-weight: 600; }
  button.primary:hover:not(:disabled) { background: var(--accent-strong); }
  button.quiet { background: none; border-color: transparent; }
  button.quiet:hover:not(:disabled) { background: var(--hover); }
  :focus-visible { outline: 2.5px solid var(--accent); outline-offset: 2px; }
  label.field { display: inline-flex; align-items: center; gap: 6px; color: var(--muted); font-size: var(--size-1); }
  label.field #hypothesis { max-width: 15em; }
  label.field select, label.field input { color: var(--ink); font-size: var(--size-2); }
  .segments { display: inline-flex; border: 1px solid var(--line-strong); border-radius: 8px; overflow: hidden; background: var(--control); }
  .segments button { border: 0; border-radius: 0; background: none; }
  .segments button + button { border-left: 1px solid var(--line); }
  .segments button[aria-pressed="true"], .segments button[aria-checked="true"] { background: var(--accent-fill); color: var(--on-accent); }
  .segments :focus-visible { outline-offset: -3px; outline-color: currentColor; }
  progress { accent-color: var(--accent); height: 8px; width: 160px; }
  caption { text-align: start; padding-bottom: var(--space-1); }
  .scroll { overflow: auto; max-width: 100%; }
  .hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
  table { border-collapse: collapse; width: 100%; }
  th { text-align: start; font-weight: 600; color: var(--muted); font-size: var(--size-1); }
  th, td { padding: 7px 10px; border-bottom: 1px solid var(--line); }
  bdi { white-space: pre-wrap; }
  math { font-size: 1.1em; }
`;
