#include "normalizer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>

#include "unicode.h"

namespace fleetbert {
namespace {

std::string encode_utf8(const std::vector<CodePoint>& text) {
  std::string out;
  for (const auto character : text) append_utf8(character, out);
  return out;
}

// The compiled normalizer of a SentencePiece model: the length of a trie (4 bytes), the trie, and
// the texts that its leaves point into, each with a NUL after it. The trie is Darts-clone's double
// array: https://github.com/s-yata/darts-clone.
class Charsmap {
 public:
  explicit Charsmap(std::string_view data) {
    uint32_t length = 0;
    if (data.size() >= 4) std::memcpy(&length, data.data(), 4);
    if (data.size() < 8 || length > data.size() - 4) {
      throw std::invalid_argument("the normalizer is cut short");
    }
    units_.resize(length / 4);
    std::memcpy(units_.data(), data.data() + 4, 4 * units_.size());
    texts_ = data.substr(4 + length);
  }

  std::string operator()(const std::string& text) const {
    std::string out;
    const auto characters = decode_utf8(text);
    size_t character = 0, at = 0;
    const auto length = [](CodePoint one) {
      return size_t{1} + (one >= 0x80) + (one >= 0x800) + (one >= 0x10000);
    };
    for (const auto end : grapheme_ends(characters)) {
      size_t bytes = 0;
      for (auto one = character; one < end; ++one) bytes += length(characters[one]);
      // As `tokenizers` does it: a short grapheme becomes what its beginning becomes.
      const auto whole = bytes < kLong ? find(std::string_view(text).substr(at, bytes)) : std::nullopt;
      if (whole) out += *whole;
      for (; character < end; ++character) {
        const auto one = std::string_view(text).substr(at, length(characters[character]));
        if (!whole) out += find(one).value_or(one);
        at += one.size();
      }
    }
    return out;
  }

 private:
  static constexpr size_t kLong = 6;  // bytes

  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  // What the shortest beginning of `text` that the trie has becomes.
  std::optional<std::string_view> find(std::string_view text) const {
    if (units_.empty()) return std::nullopt;
    size_t at = offset(units_[0]);
    for (const auto letter : text) {
      const auto byte = static_cast<unsigned char>(letter);
      at ^= byte;
      if (byte == 0 || at >= units_.size()) return std::nullopt;
      const auto unit = units_[at];
      if ((unit & ((1u << 31) | 0xFFu)) != byte) return std::nullopt;
      at ^= offset(unit);
      if ((unit >> 8 & 1u) == 0) continue;
      if (at >= units_.size()) return std::nullopt;
      const size_t start = units_[at] & ((1u << 31) - 1);
      if (start > texts_.size()) return std::nullopt;
      const auto end = std::min(texts_.find('\0', start), texts_.size());
      return std::string_view(texts_).substr(start, end - start);
    }
    return std::nullopt;
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

// Each character of `of` becomes `by`; least > 1: runs of at least so many of them do.
std::string replace_characters(const std::string& text, const std::set<CodePoint>& of, size_t least,
                               const std::string& by) {
  std::string out;
  const auto characters = decode_utf8(text);
  for (size_t at = 0; at < characters.size();) {
    auto end = at;
    while (end < characters.size() && of.count(characters[end])) ++end;
    if (end - at >= least && least > 0) {
      out += by;
      at = end;
    } else if (end > at && least == 0) {
      out += by;
      ++at;
    } else {
      append_utf8(characters[at++], out);
    }
  }
  return out;
}

std::string replace_all(const std::string& text, const std::string& of, const std::string& by) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, of.size(), of) == 0) {
      out += by;
      at += of.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::string strip(const std::string& text, bool left, bool right) {
  auto characters = decode_utf8(text);
  const auto is_other = [](CodePoint one) { return !is_whitespace(one); };
  if (right) {
    const auto end = std::find_if(characters.rbegin(), characters.rend(), is_other).base();
    characters.erase(end, characters.end());
  }
  if (left) {
    const auto start = std::find_if(characters.begin(), characters.end(), is_other);
    characters.erase(characters.begin(), start);
  }
  return encode_utf8(characters);
}

}  // namespace

Normalizer::Normalizer(const Reader& steps, const TensorFile& file) {
  for (const auto& step : steps.list()) {
    const auto kind = step.at("kind").text();
    if (kind == "charsmap") {
      const auto name = step.at("tensor").text();
      try {
        const auto map = std::make_shared<Charsmap>(file.bytes(name));
        steps_.push_back([map](const std::string& text) { return (*map)(text); });
      } catch (const std::invalid_argument& error) {
        step.fail(error.what());
      }
    } else if (kind == "characters") {
      const auto listed = decode_utf8(step.at("of").text());
      const std::set<CodePoint> of(listed.begin(), listed.end());
      const auto least = static_cast<size_t>(step.at("least").number());
      steps_.push_back([of, least, by = step.at("by").text()](const std::string& text) {
        return replace_characters(text, of, least, by);
      });
    } else if (kind == "string") {
      const auto of = step.at("of").text();
      if (of.empty()) step.at("of").fail("is empty");
      steps_.push_back([of, by = step.at("by").text()](const std::string& text) {
        return replace_all(text, of, by);
      });
    } else if (kind == "form") {
      const auto compatible = step.at("compatible").flag(), composed = step.at("composed").flag();
      steps_.push_back([compatible, composed](const std::string& text) {
        return encode_utf8(normal_form(decode_utf8(text), compatible, composed));
      });
    } else if (kind == "strip") {
      steps_.push_back([left = step.at("left").flag(), right = step.at("right").flag()](
                           const std::string& text) { return strip(text, left, right); });
    } else if (kind == "lowercase") {
      steps_.push_back(
          [](const std::string& text) { return encode_utf8(lower(decode_utf8(text))); });
    } else {
      step.at("kind").fail("is not known here: take the fleetbert-lite of the fleetbert that wrote "
                           "it");
    }
  }
}

std::string Normalizer::operator()(std::string text) const {
  for (const auto& step : steps_) text = step(text);
  return text;
}

}  // namespace fleetbert
