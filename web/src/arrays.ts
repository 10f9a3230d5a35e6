/** Arrays of a trace document: base64 text to numbers. */

export type DType = "float16" | "float32" | "int64" | "uint8" | "bool";

export interface EncodedArray {
  shape: number[];
  dtype: DType;
  data: string;
}

/** An array in C order: the last axis varies fastest. */
export interface NDArray {
  shape: number[];
  data: Float64Array;
}

/** Return an element that exists. */
export function at<T>(values: ArrayLike<T>, index: number): T {
  const value = values[index];
  if (value === undefined) throw new RangeError(`There is no element ${index} of ${values.length}.`);
  return value;
}

/** Return an element, or the last one for an index behind it. */
export const atMost = <T>(values: ArrayLike<T>, index: number): T => at(values, Math.min(index, values.length - 1));

/** Return the average of some numbers. */
export const average = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Add factor · values to the first elements of a sum. */
export function addScaled(sum: Float64Array, values: Float64Array, factor: number): void {
  for (let index = 0; index < values.length; index++) sum[index] = (sum[index] ?? 0) + factor * (values[index] ?? 0);
}

/** Return a function that computes each of its results once, as long as the argument exists. */
export function cached<K extends object, V>(compute: (key: K) => V): (key: K) => V {
  const results = new WeakMap<K, V>();
  return (key) => {
    const result = results.get(key) ?? compute(key);
    results.set(key, result);
    return result;
  };
}

const WIDTHS: Record<DType, number> = { float16: 2, float32: 4, int64: 8, uint8: 1, bool: 1 };

/** The values of all half-precision floats: many arrays have a million of them. */
const HALVES = Float64Array.from({ length: 1 << 16 }, (_, bits) => toFloat(bits));

const READERS: Record<DType, (view: DataView, offset: number) => number> = {
  float16: (view, offset) => at(HALVES, view.getUint16(offset, true)),
  float32: (view, offset) => view.getFloat32(offset, true),
  int64: (view, offset) => Number(view.getBigInt64(offset, true)),
  uint8: (view, offset) => view.getUint8(offset),
  bool: (view, offset) => view.getUint8(offset),
};

/** Return the value of a half-precision float (IEEE 754 binary16), given its bits. */
export function toFloat(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** Decode an array. The result is cached, because views read the same array often. */
export const decodeArray = cached((array: EncodedArray): NDArray => {
  const binary = atob(array.data);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index);
  const view = new DataView(bytes.buffer);
  const width = WIDTHS[array.dtype];
  const read = READERS[array.dtype];
  const size = array.shape.reduce((product, length) => product * length, 1);
  if (bytes.length !== size * width) {
    throw new Error(`An array of the shape ${array.shape.join(" × ")} has ${bytes.length} bytes instead of ${size * width}.`);
  }
  const data = new Float64Array(size);
  for (let index = 0; index < size; index++) data[index] = read(view, index * width);
  return { shape: array.shape, data };
});

/** A matrix in C order. */
export class Matrix {
  constructor(
    readonly rows: number,
    readonly columns: number,
    readonly data: Float64Array = new Float64Array(rows * columns),
  ) {}

  /** The number in a cell; NaN outside the matrix. */
  at(row: number, column: number): number {
    return this.data[row * this.columns + column] ?? NaN;
  }

  row(index: number): Float64Array {
    return this.data.subarray(index * this.columns, (index + 1) * this.columns);
  }

  map(change: (value: number, row: number, column: number) => number): Matrix {
    const result = new Matrix(this.rows, this.columns);
    for (let row = 0; row < this.rows; row++) {
      for (let column = 0; column < this.columns; column++) {
        result.data[row * this.columns + column] = change(this.at(row, column), row, column);
      }
    }
    return result;
  }

  multiply(other: Matrix): Matrix {
    const result = new Matrix(this.rows, other.columns);
    for (let row = 0; row < this.rows; row++) {
      const target = result.row(row);
      for (let inner = 0; inner < this.columns; inner++) {
        const factor = this.at(row, inner);
        if (factor === 0) continue;
        addScaled(target, other.row(inner), factor);
      }
    }
    return result;
  }

  /** Return the matrix with the rows that a function returns. */
  static fromRows(rows: number, columns: number, compute: (row: number) => Float64Array): Matrix {
    const result = new Matrix(rows, columns);
    for (let row = 0; row < rows; row++) result.row(row).set(compute(row));
    return result;
  }

  static identity(size: number): Matrix {
    return new Matrix(size, size).map((_, row, column) => (row === column ? 1 : 0));
  }
}

/** Return the matrices along the first axis: one for a matrix, several for an array of three axes. */
export const splitMatrices = cached(({ shape, data }: NDArray): Matrix[] => {
  const [count, rows, columns] = shape.length === 3 ? [at(shape, 0), at(shape, 1), at(shape, 2)] : [1, at(shape, 0), at(shape, 1)];
  return Array.from(
    { length: count },
    (_, index) => new Matrix(rows, columns, data.subarray(index * rows * columns, (index + 1) * rows * columns)),
  );
});

export function removeAt<T>(values: readonly T[], index: number): T[] {
  return values.filter((_, position) => position !== index);
}
