// Windows of long texts, as fleetbert/data/windows.py has them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace fleetbert {

// What becomes of texts with more tokens than a model reads at once: core/reading.py.
struct LongTexts {
  std::string method = "cut";  // windows or head_tail
  size_t stride = 0;           // tokens that windows share, at least
  std::string pool = "mean";   // max, or vectors
};

// Where each window of `length` tokens begins and ends, with room for so many in each.
std::vector<std::pair<size_t, size_t>> windows(size_t length, size_t room, size_t stride);

// A window of a text: its number among the texts, and where it begins and ends among the tokens.
struct Window {
  size_t text = 0, begin = 0, end = 0;
};

// The outputs of a text, of those of its windows; `outputs` numbers in each.
std::vector<float> pool(const std::vector<Window>& of_text,
                        const std::vector<std::vector<float>>& rows, const std::string& how,
                        size_t outputs);

// The same of tokens: of each from the window in which it has the most context. first, last: where
// the divided tokens of the text begin and end; length: all of them.
std::vector<float> stitch(const std::vector<Window>& of_text,
                          const std::vector<std::vector<float>>& rows, size_t first, size_t last,
                          size_t length, size_t outputs);

}  // namespace fleetbert
