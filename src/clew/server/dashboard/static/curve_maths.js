// Smoothing of a curve, and the mean of several curves.

// An exponential mean that starts without a bias: the weights of the values so far are normalised.
export function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

// The value of a curve at a position, between its points; null outside of it.
function valueAt(x, y, at) {
  let high = x.findIndex(each => each >= at);
  if (high < 0 || (high === 0 && x[0] > at)) return null;
  if (x[high] === at || high === 0) return y[high];
  const low = high - 1, share = (at - x[low]) / (x[high] - x[low]);
  return y[low] === null || y[high] === null ? null : y[low] + share * (y[high] - y[low]);
}

const GRID = 200;

// Curves by group: mean, and mean minus and plus the standard deviation, at positions that the curves cover.
export function grouped(curves) {
  const groups = Map.groupBy ? Map.groupBy(curves, each => each.group) : curves.reduce((all, each) => all.set(each.group, [...(all.get(each.group) ?? []), each]), new Map());
  return [...groups].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([name, members]) => {
    const positions = [...new Set(members.flatMap(each => each.x))].sort((a, b) => a - b), every = Math.ceil(positions.length / GRID) || 1;
    const x = positions.filter((_, place) => place % every === 0), mean = [], low = [], high = [];
    for (const at of x) {
      const values = members.map(each => valueAt(each.x, each.last, at)).filter(value => value !== null);
      const middle = values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
      const spread = values.length > 1 ? Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1)) : 0;
      mean.push(middle), low.push(middle === null ? null : middle - spread), high.push(middle === null ? null : middle + spread);
    }
    return { name, x, mean, low, high, count: members.length };
  });
}
