#include "unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <stdexcept>

namespace fleetbert {
namespace {

struct Range {
  CodePoint first, last;
};

// `tokenizers` (0.22, 0.23) has the categories of Unicode 8. These marks, punctuation, format and
// decomposable characters came later, up to Unicode 18: it takes them as they are. Found by asking
// it for every character; the tests ask again.
constexpr Range kUnknown[] = {
    {0x05C8, 0x05C9}, {0x061D, 0x061D}, {0x07FD, 0x07FD}, {0x0890, 0x0891}, {0x0897, 0x089F},
    {0x08CA, 0x08E2}, {0x09FD, 0x09FE}, {0x0A76, 0x0A76}, {0x0AFA, 0x0AFF}, {0x0B53, 0x0B55},
    {0x0C04, 0x0C04}, {0x0C3C, 0x0C3C}, {0x0C77, 0x0C77}, {0x0C84, 0x0C84}, {0x0D00, 0x0D00},
    {0x0D3B, 0x0D3C}, {0x0D81, 0x0D81}, {0x0EBA, 0x0EBA}, {0x0ECE, 0x0ECE}, {0x180F, 0x180F},
    {0x1885, 0x1886}, {0x1ABF, 0x1AF0}, {0x1B4E, 0x1B4F}, {0x1B7D, 0x1B7F}, {0x1DF6, 0x1DFB},
    {0x2E43, 0x2E4F}, {0x2E52, 0x2E5D}, {0x2E60, 0x2E63}, {0xA82C, 0xA82C}, {0xA8C5, 0xA8C5},
    {0xA8FF, 0xA8FF}, {0xA9BD, 0xA9BD}, {0x105C9, 0x105C9}, {0x105E4, 0x105E4}, {0x10D24, 0x10D27},
    {0x10D69, 0x10D6E}, {0x10EAB, 0x10EAD}, {0x10ECB, 0x10ED0}, {0x10EF0, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F55, 0x10F59}, {0x10F82, 0x10F89}, {0x11070, 0x11070},
    {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x110CD, 0x110CD}, {0x111C9, 0x111C9},
    {0x111CF, 0x111CF}, {0x1123E, 0x1123E}, {0x11241, 0x11241}, {0x1133B, 0x1133B},
    {0x11383, 0x11383}, {0x11385, 0x11385}, {0x1138E, 0x1138E}, {0x11391, 0x11391},
    {0x113BB, 0x113C0}, {0x113C5, 0x113C5}, {0x113C7, 0x113C8}, {0x113CE, 0x113CE},
    {0x113D0, 0x113D0}, {0x113D2, 0x113D2}, {0x113D4, 0x113D5}, {0x113D7, 0x113D8},
    {0x113E1, 0x113E2}, {0x11438, 0x1143F}, {0x11442, 0x11444}, {0x11446, 0x11446},
    {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145E}, {0x11660, 0x1166C},
    {0x116B9, 0x116B9}, {0x1182F, 0x11837}, {0x11839, 0x1183B}, {0x11938, 0x11938},
    {0x1193B, 0x1193C}, {0x1193E, 0x1193E}, {0x11943, 0x11946}, {0x119D4, 0x119D7},
    {0x119DA, 0x119DB}, {0x119E0, 0x119E0}, {0x119E2, 0x119E2}, {0x11A01, 0x11A0A},
    {0x11A33, 0x11A38}, {0x11A3B, 0x11A47}, {0x11A51, 0x11A56}, {0x11A59, 0x11A5B},
    {0x11A8A, 0x11A96}, {0x11A98, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09},
    {0x11B60, 0x11B60}, {0x11B62, 0x11B64}, {0x11B66, 0x11B66}, {0x11BE1, 0x11BE1},
    {0x11C30, 0x11C36}, {0x11C38, 0x11C3D}, {0x11C3F, 0x11C3F}, {0x11C41, 0x11C45},
    {0x11C70, 0x11C71}, {0x11C92, 0x11CA7}, {0x11CAA, 0x11CB0}, {0x11CB2, 0x11CB3},
    {0x11CB5, 0x11CB6}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D},
    {0x11D3F, 0x11D45}, {0x11D47, 0x11D47}, {0x11D90, 0x11D91}, {0x11D95, 0x11D95},
    {0x11D97, 0x11D97}, {0x11DF0, 0x11DF0}, {0x11EF3, 0x11EF4}, {0x11EF7, 0x11EF8},
    {0x11F00, 0x11F01}, {0x11F36, 0x11F3A}, {0x11F40, 0x11F40}, {0x11F42, 0x11F4F},
    {0x11F5A, 0x11F5A}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x13430, 0x13440},
    {0x13447, 0x13455}, {0x1611E, 0x16129}, {0x1612D, 0x1612F}, {0x16D68, 0x16D6A},
    {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A}, {0x16F4F, 0x16F4F}, {0x16FE2, 0x16FE2},
    {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1D127, 0x1D128},
    {0x1D25B, 0x1D25C}, {0x1E000, 0x1E006}, {0x1E008, 0x1E018}, {0x1E01B, 0x1E021},
    {0x1E023, 0x1E024}, {0x1E026, 0x1E02A}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
    {0x1E5FF, 0x1E5FF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF},
    {0x1E6F5, 0x1E6F5}, {0x1E944, 0x1E94A}, {0x1E95E, 0x1E95F},
};

// Marks whose place among others it does not know: they came after Unicode 9.
constexpr Range kUnordered[] = {
    {0x05C8, 0x05C9}, {0x07FD, 0x07FD}, {0x0897, 0x089F}, {0x08CA, 0x08D3}, {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C}, {0x0D3B, 0x0D3C}, {0x0EBA, 0x0EBA}, {0x1715, 0x1715}, {0x1ABF, 0x1AF0},
    {0x1DF6, 0x1DFA}, {0xA82C, 0xA82C}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x1612F, 0x1612F}, {0x16FF0, 0x16FF1}, {0x1D127, 0x1D128},
    {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6},
    {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};

// Compatible with others since Unicode 12 to 17; it leaves them as they are.
constexpr Range kCompatibleSince[] = {
    {0x32FF, 0x32FF}, {0xA7F1, 0xA7F4}, {0xAB69, 0xAB69}, {0x10781, 0x107BA}, {0x1CCD6, 0x1CCF9},
    {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

// Marks that utf8proc 2.8 does not know and `tokenizers` joins to what stands before: Unicode 15.1 to
// 17.
constexpr Range kJoining[] = {
    {0x0897, 0x0897}, {0x1ACF, 0x1ADD}, {0x1AE0, 0x1AEB}, {0x10D69, 0x10D6D}, {0x10EFA, 0x10EFC},
    {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA},
    {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2}, {0x11B60, 0x11B67},
    {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3},
    {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};

template <size_t size>
bool is_in(const Range (&ranges)[size], CodePoint character) {
  const auto* found = std::lower_bound(
      std::begin(ranges), std::end(ranges), character,
      [](const Range& range, CodePoint wanted) { return range.last < wanted; });
  return found != std::end(ranges) && found->first <= character;
}

bool is_unknown(CodePoint character) { return is_in(kUnknown, character); }

// Whether it has one of these categories, as far as `tokenizers` knows.
bool is_one_of(CodePoint character, std::initializer_list<utf8proc_category_t> categories) {
  const auto own = utf8proc_category(character);
  return std::find(categories.begin(), categories.end(), own) != categories.end() &&
         !is_unknown(character);
}

bool is_nonspacing_mark(CodePoint character) {
  if (character == 0x1734 || character == 0x1171E) return true;  // spacing since
  return is_one_of(character, {UTF8PROC_CATEGORY_MN});
}

// compatible: "ﬁ" becomes "fi" too.
void append_decomposed(CodePoint character, bool compatible, std::vector<CodePoint>& out) {
  if (character < (compatible ? 0xA0 : 0xC0) || is_unknown(character) ||
      (compatible && is_in(kCompatibleSince, character))) {
    out.push_back(character);
    return;
  }
  constexpr utf8proc_ssize_t kMost = 18;  // characters of a decomposition
  utf8proc_int32_t parts[kMost];
  int boundary = UTF8PROC_BOUNDCLASS_START;
  const int options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  const auto count = utf8proc_decompose_char(
      character, parts, kMost, static_cast<utf8proc_option_t>(options), &boundary);
  if (count < 1 || count > kMost) {
    out.push_back(character);
    return;
  }
  out.insert(out.end(), parts, parts + count);
}

int combining_class(CodePoint character) {
  if (is_in(kUnordered, character)) return 0;
  return utf8proc_get_property(character)->combining_class;
}

// A character of a decomposition; begins: whether it is the first that one of the text becomes.
struct Part {
  CodePoint character = 0;
  bool begins = true;
};
CodePoint character_of(CodePoint one) { return one; }
CodePoint character_of(const Part& one) { return one.character; }

// Marks that follow a character, in Unicode's canonical order.
template <typename Character>
void order_marks(std::vector<Character>& text) {
  const auto class_of = [](const Character& one) {
    const auto character = character_of(one);
    return character < 0x300 ? 0 : combining_class(character);
  };
  for (auto start = text.begin(); start != text.end();) {
    if (class_of(*start) == 0) {
      ++start;
      continue;
    }
    const auto end = std::find_if(start, text.end(),
                                  [&](const Character& one) { return class_of(one) == 0; });
    std::stable_sort(start, end, [&](const Character& one, const Character& other) {
      return class_of(one) < class_of(other);
    });
    start = end;
  }
}

// The character that two make, or nothing.
std::optional<CodePoint> composed_of(CodePoint first, CodePoint second) {
  utf8proc_int32_t both[3] = {first, second, 0};
  const int options = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
  const auto left = utf8proc_normalize_utf32(both, 2, static_cast<utf8proc_option_t>(options));
  if (left != 1 || is_unknown(both[0])) return std::nullopt;
  return both[0];
}

// Marks in canonical order go into the character before them, where there is one of both:
// Unicode Standard Annex 15.
std::vector<CodePoint> compose(const std::vector<CodePoint>& text) {
  std::vector<CodePoint> out;
  std::optional<size_t> starter;
  int before = 0;  // class of what stands before
  for (const auto character : text) {
    const auto own = combining_class(character);
    if (starter && (*starter + 1 == out.size() || before < own)) {
      if (const auto one = composed_of(out[*starter], character)) {
        out[*starter] = *one;
        continue;
      }
    }
    if (own == 0) starter = out.size();
    before = own;
    out.push_back(character);
  }
  return out;
}

}  // namespace

std::vector<CodePoint> decode_utf8(std::string_view text) {
  std::vector<CodePoint> characters;
  characters.reserve(text.size());
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t position = 0; position < text.size();) {
    if (data[position] < 0x80) {
      characters.push_back(data[position++]);
      continue;
    }
    utf8proc_int32_t character = -1;
    const auto left = static_cast<utf8proc_ssize_t>(text.size() - position);
    const auto used = utf8proc_iterate(data + position, left, &character);
    if (used < 1) {
      throw std::invalid_argument("not UTF-8 (byte " + std::to_string(position) + ")");
    }
    characters.push_back(character);
    position += static_cast<size_t>(used);
  }
  return characters;
}

void append_utf8(CodePoint character, std::string& text) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(character, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

std::string encode_utf8(const std::vector<CodePoint>& characters, size_t begin, size_t end) {
  std::string text;
  for (size_t at = begin; at < end; ++at) append_utf8(characters[at], text);
  return text;
}

bool is_utf8(std::string_view text) {
  try {
    decode_utf8(text);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

bool is_whitespace(CodePoint character) {
  return (character >= 0x9 && character <= 0xD) || character == 0x20 || character == 0x85 ||
         character == 0xA0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F ||
         character == 0x205F || character == 0x3000;
}

bool is_blank(CodePoint character) {
  return is_whitespace(character) || (character >= 0x1C && character <= 0x1F);
}

bool is_alphanumeric(CodePoint character) {
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

bool is_mark(CodePoint character) {
  const auto own = utf8proc_category(character);
  return own == UTF8PROC_CATEGORY_MN || own == UTF8PROC_CATEGORY_MC || own == UTF8PROC_CATEGORY_ME;
}

std::string fault_of(std::string_view text) {
  const auto characters = decode_utf8(text);
  if (std::all_of(characters.begin(), characters.end(), is_blank)) return "is empty";
  if (text.find('\0') != std::string_view::npos) return "holds a NUL character";
  return "";
}

bool is_control(CodePoint character) {
  if (character == '\t' || character == '\n' || character == '\r') return false;
  return is_one_of(character,
                   {UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_CO});
}

bool is_punctuation(CodePoint character) {
  if (character < 0x80) {
    return (character >= '!' && character <= '/') || (character >= ':' && character <= '@') ||
           (character >= '[' && character <= '`') || (character >= '{' && character <= '~');
  }
  if (character == 0x166D || character == 0x111C9) return true;  // a symbol and a mark since
  return is_one_of(character, {UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PD, UTF8PROC_CATEGORY_PS,
                               UTF8PROC_CATEGORY_PE, UTF8PROC_CATEGORY_PI, UTF8PROC_CATEGORY_PF,
                               UTF8PROC_CATEGORY_PO});
}

bool is_chinese(CodePoint character) {
  constexpr Range kChinese[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                {0x2F800, 0x2FA1F}};
  return is_in(kChinese, character);
}

std::vector<CodePoint> strip_accents(const std::vector<CodePoint>& text,
                                     std::vector<size_t>* from) {
  std::vector<Part> parts;
  parts.reserve(text.size());
  std::vector<CodePoint> decomposed;
  for (const auto character : text) {
    decomposed.clear();
    append_decomposed(character, false, decomposed);
    for (size_t at = 0; at < decomposed.size(); ++at) parts.push_back({decomposed[at], at == 0});
  }
  order_marks(parts);
  std::vector<CodePoint> out;
  std::vector<size_t> places;
  size_t begun = 0;  // characters of the text
  for (const auto& part : parts) {
    begun += part.begins;
    if (is_nonspacing_mark(part.character)) continue;
    out.push_back(part.character);
    if (from != nullptr) places.push_back((*from)[begun - 1]);
  }
  if (from != nullptr) *from = std::move(places);
  return out;
}

std::vector<CodePoint> normal_form(const std::vector<CodePoint>& text, bool compatible,
                                   bool composed) {
  std::vector<CodePoint> out;
  out.reserve(text.size());
  for (const auto character : text) append_decomposed(character, compatible, out);
  order_marks(out);
  return composed ? compose(out) : out;
}

std::vector<size_t> grapheme_ends(const std::vector<CodePoint>& text) {
  std::vector<size_t> ends;
  utf8proc_int32_t state = 0;
  const auto known = [](CodePoint one) { return is_in(kJoining, one) ? 0x301 : one; };
  for (size_t at = 1; at < text.size(); ++at) {
    if (utf8proc_grapheme_break_stateful(known(text[at - 1]), known(text[at]), &state)) {
      ends.push_back(at);
    }
  }
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

std::vector<CodePoint> lower(const std::vector<CodePoint>& text, std::vector<size_t>* from) {
  std::vector<CodePoint> out;
  out.reserve(text.size());
  for (const auto character : text) {
    if (character == 0x130) {  // I with a dot: the only one that becomes two
      if (from != nullptr) {
        const auto at = from->begin() + static_cast<std::ptrdiff_t>(out.size());
        from->insert(at, *at);
      }
      out.insert(out.end(), {'i', 0x307});
    } else {
      out.push_back(utf8proc_tolower(character));
    }
  }
  return out;
}

}  // namespace fleetbert
