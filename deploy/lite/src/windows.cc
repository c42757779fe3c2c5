#include "windows.h"

#include <algorithm>
#include <cmath>

namespace fleetbert {

std::vector<std::pair<size_t, size_t>> windows(size_t length, size_t room, size_t stride) {
  if (length <= room) return {{0, length}};
  const auto each = room - stride;
  const auto steps = (length - room + each - 1) / each;
  const auto width = (length + steps * stride + steps) / (steps + 1);
  std::vector<std::pair<size_t, size_t>> plan;
  for (size_t number = 0; number <= steps; ++number) {
    const auto begin = number * (length - width) / steps;
    plan.emplace_back(begin, begin + width);
  }
  return plan;
}

std::vector<float> pool(const std::vector<Window>& of_text,
                        const std::vector<std::vector<float>>& rows, const std::string& how,
                        size_t outputs) {
  auto pooled = rows[0];
  if (how == "max") {
    for (const auto& row : rows) {
      for (size_t i = 0; i < outputs; ++i) pooled[i] = std::max(pooled[i], row[i]);
    }
    return pooled;
  }
  std::vector<double> sums(outputs, 0.0);
  double total = 0, squares = 0;
  for (size_t n = 0; n < rows.size(); ++n) {
    const auto tokens = static_cast<double>(of_text[n].end - of_text[n].begin);
    const auto share = how == "vectors" ? tokens : 1.0;
    total += share;
    for (size_t i = 0; i < outputs; ++i) sums[i] += share * static_cast<double>(rows[n][i]);
  }
  for (auto& sum : sums) {
    sum /= total;
    squares += sum * sum;
  }
  const auto size = how == "vectors" ? std::sqrt(squares) + 1e-12 : 1.0;
  for (size_t i = 0; i < outputs; ++i) pooled[i] = static_cast<float>(sums[i] / size);
  return pooled;
}

std::vector<float> stitch(const std::vector<Window>& of_text,
                          const std::vector<std::vector<float>>& rows, size_t first, size_t last,
                          size_t length, size_t outputs) {
  std::vector<float> whole;
  whole.reserve(length * outputs);
  size_t number = 0;
  for (size_t token = 0; token < length; ++token) {
    // The middle of what two windows share belongs to the later one.
    while (number + 1 < of_text.size() && token >= first &&
           2 * token >= of_text[number].end + of_text[number + 1].begin) {
      ++number;
    }
    const auto& window = of_text[number];
    auto place = token;  // what is before and after is in each row
    if (token >= last) {
      place = token - last + first + window.end - window.begin;
    } else if (token >= first) {
      place = token - window.begin + first;
    }
    const auto* at = rows[number].data() + place * outputs;
    whole.insert(whole.end(), at, at + outputs);
  }
  return whole;
}

}  // namespace fleetbert
