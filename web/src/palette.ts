/** Colors of drawings. One hue for weights, two for signed differences: both are safe for color-blind readers. */

import { at } from "./arrays.js";

export interface Palette {
  background: string;
  ink: string;
  muted: string;
  line: string;
  accent: string;
  /** The color of edits. */
  edit: string;
  /** Bars of negative numbers. */
  negative: string;
  /** The background of what is focused. */
  tint: string;
  ramp: readonly string[];
  diverging: readonly string[];
}

const parseColor = (hex: string): number[] => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

/** Interpolate colors at equal distances, in 256 levels. */
function interpolate(...stops: string[]): string[] {
  const colors = stops.map(parseColor);
  return Array.from({ length: 256 }, (_, level) => {
    const position = (level / 255) * (colors.length - 1);
    const index = Math.min(Math.floor(position), colors.length - 2);
    const share = position - index;
    const next = at(colors, index + 1);
    const mixed = at(colors, index).map((channel, axis) => Math.round(channel + share * (at(next, axis) - channel)));
    return `rgb(${mixed.join(",")})`;
  });
}

export const LIGHT: Palette = {
  background: "#ffffff",
  ink: "#1b2130",
  muted: "#596275",
  line: "#dfe3ea",
  accent: "#2b5fd9",
  edit: "#a34e00",
  negative: "#d9822b",
  tint: "#e8effd",
  ramp: interpolate("#f5f7fb", "#c3d5fb", "#7fa4f2", "#3a66d6", "#17327f", "#0b1a4a"),
  diverging: interpolate("#8c3a00", "#e08a3c", "#f6f6f6", "#5b8def", "#173a8c"),
};

export const DARK: Palette = {
  background: "#161a22",
  ink: "#e8ebf2",
  muted: "#a2abbd",
  line: "#2e3543",
  accent: "#8ab0ff",
  edit: "#ffb26b",
  negative: "#d9822b",
  tint: "#1d2a47",
  ramp: interpolate("#1c212b", "#22386e", "#2f5bc0", "#6f9dfb", "#b9d1ff", "#f4f8ff"),
  diverging: interpolate("#ffb26b", "#a8591a", "#20242d", "#3f6fd6", "#a9c6ff"),
};

/** Return the index of a color, 0 for NaN. */
export const levelOf = (value: number): number => Math.max(0, Math.min(255, Math.round(255 * value))) || 0;

export function colorOf(palette: Palette, weight: number): string {
  return at(palette.ramp, levelOf(weight));
}

/** Use the theme that the reader chose, or the one that the system prefers. */
export function applyTheme(): void {
  const chosen = localStorage.getItem("regard.theme");
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "dark" : "light");
}

export function setTheme(theme: string): void {
  document.documentElement.dataset["theme"] = theme;
}

export function isDark(): boolean {
  return document.documentElement.dataset["theme"] === "dark";
}

export function currentPalette(): Palette {
  return isDark() ? DARK : LIGHT;
}
