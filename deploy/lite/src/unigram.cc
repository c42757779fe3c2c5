#include "unigram.h"

#include <algorithm>
#include <stdexcept>

#include "error.h"
#include "unicode.h"

namespace fleetbert {
namespace {

constexpr uint64_t kLargest = 1u << 28;  // of a tensor's dimension
constexpr uint64_t kMostTokens = 1u << 24;
constexpr double kUnknownPenalty = 10;  // under the lowest score, as in SentencePiece

size_t character_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

int64_t token_id(const Reader& entry) {
  const auto id = entry.number();
  if (id >= kMostTokens) entry.fail("is out of bounds");
  return static_cast<int64_t>(id);
}

std::vector<int64_t> token_ids(const Reader& entries) {
  std::vector<int64_t> ids;
  for (const auto& entry : entries.list()) ids.push_back(token_id(entry));
  return ids;
}

// Each call of `found` has a character, where it starts and where it ends.
template <class Found>
void each_character(std::string_view text, Found found) {
  size_t at = 0;
  for (const auto character : decode_utf8(text)) {
    const auto end = at + character_length(text[at]);
    found(character, at, end);
    at = end;
  }
}

size_t spaces_at_end(std::string_view text) {
  size_t bytes = 0;
  each_character(text, [&](CodePoint one, size_t start, size_t end) {
    bytes = is_whitespace(one) ? bytes + end - start : 0;
  });
  return bytes;
}

size_t spaces_at_start(std::string_view text) {
  size_t bytes = 0;
  each_character(text, [&](CodePoint one, size_t start, size_t end) {
    if (start == bytes && is_whitespace(one)) bytes = end;
  });
  return bytes;
}

std::vector<std::string> split_at_whitespace(const std::string& text) {
  std::vector<std::string> words(1);
  each_character(text, [&](CodePoint one, size_t start, size_t end) {
    if (!is_whitespace(one)) {
      words.back().append(text, start, end - start);
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  });
  if (words.back().empty()) words.pop_back();
  return words;
}

// Spaces become visible characters, each of which begins a word.
std::vector<std::string> split_metaspace(const std::string& text, const std::string& space,
                                         bool prepend, bool split) {
  std::string whole;
  for (const auto byte : text) {
    if (byte == ' ') {
      whole += space;
    } else {
      whole += byte;
    }
  }
  if (prepend && whole.compare(0, space.size(), space) != 0) whole.insert(0, space);
  if (!split) return {whole};
  std::vector<std::string> words;
  for (size_t start = 0; start < whole.size();) {
    const auto end = std::min(whole.find(space, start + 1), whole.size());
    words.push_back(whole.substr(start, end - start));
    start = end;
  }
  return words;
}

nlohmann::json settings_of(const TensorFile& file) { return file.metadata("tokenizer"); }

}  // namespace

Unigram::Unigram(const std::filesystem::path& path) : Unigram(TensorFile(path, kLargest)) {}

Unigram::Unigram(const TensorFile& file)
    : text_(file.bytes("pieces")),
      ends_(file.values<uint32_t>("ends", "U32")),
      scores_(file.values<double>("scores", "F64")),
      ids_(file.values<uint32_t>("ids", "U32")),
      normalizer_([&] {
        const auto settings = settings_of(file);
        return Normalizer(Reader(settings, "", file.path()).at("normalizer"), file);
      }()) {
  const auto fail = [&](const std::string& what) {
    throw UserError(file.path().string() + ": " + what + ": copy the bundle again");
  };
  const auto settings = settings_of(file);
  const Reader reader(settings, "", file.path());
  const auto count = ends_.size();
  if (count == 0 || scores_.size() != count || ids_.size() != count) {
    fail("its tensors do not go with each other");
  }
  for (size_t number = 0; number < count; ++number) {
    const size_t start = number == 0 ? 0 : ends_[number - 1];
    if (ends_[number] <= start || ends_[number] > text_.size()) fail("its pieces are out of order");
    if (number > 0 && !(piece(number - 1) < piece(number))) fail("its pieces are out of order");
    if (ids_[number] >= kMostTokens) fail("an id is out of bounds");
  }
  for (size_t byte = 0, number = 0; byte < first_bytes_.size(); ++byte) {
    while (number < count && static_cast<unsigned char>(piece(number)[0]) < byte) ++number;
    first_bytes_[byte] = number;
  }
  unknown_score_ = reader.at("lowest_score").real() - kUnknownPenalty;
  unknown_ = token_id(reader.at("unknown"));
  replacement_ = token_id(reader.at("replacement"));
  pad_ = token_id(reader.at("pad"));
  size_ = static_cast<size_t>(token_id(reader.at("size")));
  for (const auto id : token_ids(reader.at("never"))) never_.insert(id);
  const auto around = reader.at("template");
  template_.before = token_ids(around.at("before"));
  template_.between = token_ids(around.at("between"));
  template_.after = token_ids(around.at("after"));
  template_.in_first = static_cast<size_t>(token_id(around.at("in_first")));
  template_.one_type = around.at("one_type").flag();
  template_.left = around.has("left") && around.at("left").flag();
  if (template_.in_first > template_.between.size()) around.at("in_first").fail("is out of bounds");
  for (const auto& step : reader.at("pre_tokenizer").list()) {
    Split one;
    one.metaspace = step.at("kind").text() == "metaspace";
    if (one.metaspace) {
      one.replacement = step.at("replacement").text();
      if (one.replacement.empty()) step.at("replacement").fail("is empty");
      one.prepend = step.at("prepend").flag();
      one.split = step.at("split").flag();
    } else if (step.at("kind").text() != "whitespace") {
      step.at("kind").fail("is not known here");
    }
    splits_.push_back(std::move(one));
  }
  read_added(reader.at("added"));
}

void Unigram::read_added(const Reader& entries) {
  for (const auto& entry : entries.list()) {
    Added token;
    token.text = entry.at("text").text();
    if (token.text.empty()) entry.at("text").fail("is empty");
    token.id = token_id(entry.at("id"));
    token.special = entry.at("special").flag();
    token.left = entry.at("left").flag();
    token.right = entry.at("right").flag();
    auto& tokens = added_[entry.at("normalized").flag() ? 1 : 0];
    tokens.empty = false;
    tokens.by_first_byte[static_cast<unsigned char>(token.text[0])].push_back(std::move(token));
  }
  for (auto& tokens : added_) {
    for (auto& some : tokens.by_first_byte) {
      std::stable_sort(some.begin(), some.end(), [](const Added& one, const Added& other) {
        return one.text.size() > other.text.size();
      });
    }
  }
}

std::vector<int64_t> Unigram::pieces(std::string_view text) const {
  decode_utf8(text);  // throws
  std::vector<int64_t> ids;
  for (const auto& part : find_added(text, added_[0])) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    const auto normalized = normalizer_(std::string(part.text));
    for (const auto& inner : find_added(normalized, added_[1])) {
      if (inner.id) {
        ids.push_back(*inner.id);
        continue;
      }
      for (const auto& word : words(std::string(inner.text))) add_word(word, ids);
    }
  }
  for (auto& id : ids) {
    if (never_.count(id)) id = replacement_;
  }
  return ids;
}

std::vector<Unigram::Part> Unigram::find_added(std::string_view text, const AddedTokens& tokens) {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens.empty;) {
    const auto& some = tokens.by_first_byte[static_cast<unsigned char>(text[at])];
    const auto found = std::find_if(some.begin(), some.end(), [&](const Added& one) {
      return text.compare(at, one.text.size(), one.text) == 0;
    });
    if (found == some.end()) {
      ++at;
      continue;
    }
    auto start = at, end = at + found->text.size();
    at = end;
    if (found->special) continue;
    if (found->left) start = std::max(start - spaces_at_end(text.substr(0, start)), done);
    if (found->right) end += spaces_at_start(text.substr(end));
    if (start > done) parts.push_back({text.substr(done, start - done), std::nullopt});
    parts.push_back({text.substr(start, end - start), found->id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), std::nullopt});
  return parts;
}

std::vector<std::string> Unigram::words(const std::string& text) const {
  std::vector<std::string> found{text};
  for (const auto& step : splits_) {
    std::vector<std::string> next;
    for (const auto& part : found) {
      if (part.empty()) continue;
      auto split = step.metaspace
                       ? split_metaspace(part, step.replacement, step.prepend, step.split)
                       : split_at_whitespace(part);
      std::move(split.begin(), split.end(), std::back_inserter(next));
    }
    found = std::move(next);
  }
  return found;
}

void Unigram::add_word(std::string_view word, std::vector<int64_t>& ids) const {
  struct Node {
    int64_t id = 0;
    double score = 0;
    size_t start = 0;
    bool reached = false;
  };
  std::vector<Node> best(word.size() + 1);  // ends of the best spellings
  const auto offer = [&](size_t end, double score, size_t start, int64_t id) {
    auto& node = best[end];
    if (!node.reached || score > node.score) node = {id, score, start, true};
  };
  for (size_t start = 0; start < word.size();) {
    const auto length = std::min(character_length(word[start]), word.size() - start);
    const auto so_far = best[start].score;
    bool alone = false;  // whether the character itself is a piece
    each_beginning(word.substr(start), [&](size_t number, size_t bytes) {
      offer(start + bytes, scores_[number] + so_far, start, ids_[number]);
      alone |= bytes == length;
    });
    if (!alone) offer(start + length, unknown_score_ + so_far, start, unknown_);
    start += length;
  }
  std::vector<int64_t> found;  // backwards
  for (size_t end = word.size(); end > 0; end = best[end].start) {
    const auto id = best[end].id;
    // Unknown characters side by side are one token.
    if (id != unknown_ || found.empty() || found.back() != unknown_) found.push_back(id);
  }
  ids.insert(ids.end(), found.rbegin(), found.rend());
}

void Unigram::each_beginning(std::string_view text,
                             const std::function<void(size_t, size_t)>& found) const {
  const auto byte = static_cast<unsigned char>(text[0]);
  auto first = first_bytes_[byte], last = first_bytes_[byte + size_t{1}];
  for (size_t length = 1; first < last; ++length) {
    if (piece(first).size() == length) found(first++, length);
    if (length == text.size()) return;
    // Of those left, all longer, the ones whose next byte is the text's.
    const auto next = static_cast<unsigned char>(text[length]);
    const auto bound = [&](size_t from, size_t to, unsigned limit) {
      while (from < to) {
        const auto middle = from + (to - from) / 2;
        if (static_cast<unsigned char>(piece(middle)[length]) < limit) {
          from = middle + 1;
        } else {
          to = middle;
        }
      }
      return from;
    };
    first = bound(first, last, next);
    last = bound(first, last, next + 1u);
  }
}

}  // namespace fleetbert
