#include "classifier.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <stdexcept>

#include "error.h"
#include "unicode.h"

namespace fleetbert {
namespace {

// Boards have small caches: more in a batch does not make a text cheaper.
constexpr size_t kBatchTokens = 1024;

// A text without the middle of the tokens that are divided, where it has more than max_length.
void leave_middle_out(Encoding& encoding, std::vector<Word>& words, size_t max_length) {
  if (encoding.ids.size() <= max_length) return;
  const auto left_out = encoding.ids.size() - max_length;
  const auto room = encoding.last - encoding.first - left_out;
  const auto head = encoding.first + room - room / 2, tail = encoding.last - room / 2;
  const auto begin = encoding.ids.begin();
  encoding.ids.erase(begin + static_cast<std::ptrdiff_t>(head),
                     begin + static_cast<std::ptrdiff_t>(tail));
  if (encoding.last <= encoding.first_length) encoding.first_length -= left_out;
  encoding.truncated = true;
  std::vector<Word> kept;
  for (auto word : words) {
    if (word.token >= head && word.token < tail) continue;
    if (word.token >= tail) word.token -= left_out;
    kept.push_back(word);
  }
  words = std::move(kept);
}

// The row of a window of a text: its tokens between those that every row repeats.
Row part_of(const Row& row, size_t begin, size_t end) {
  const auto part = [&](const std::vector<int64_t>& all) {
    const auto at = [&](size_t place) { return all.begin() + static_cast<std::ptrdiff_t>(place); };
    std::vector<int64_t> some(all.begin(), at(row.first));
    some.insert(some.end(), at(begin), at(end));
    some.insert(some.end(), at(row.last), all.end());
    return some;
  };
  Row made;
  made.input_ids = part(row.input_ids);
  made.token_type_ids = part(row.token_type_ids);
  made.speed = row.speed;
  return made;
}

// The first token stands for no answer: it is that of the window which is least for it.
void take_least_none(const std::vector<std::vector<float>>& rows, std::vector<float>& whole) {
  const auto sum = [](const std::vector<float>& row) { return row[0] + row[1]; };
  const auto least = std::min_element(
      rows.begin(), rows.end(), [&](const auto& one, const auto& other) {
        return sum(one) < sum(other);
      });
  std::copy_n(least->begin(), 2, whole.begin());
}

}  // namespace

Classifier::Classifier(Bundle bundle, Variant variant, std::unique_ptr<Tokenizer> tokenizer,
                       Exits exits, std::unique_ptr<Engine> engine)
    : bundle_(std::move(bundle)),
      variant_(std::move(variant)),
      tokenizer_(std::move(tokenizer)),
      exits_(std::move(exits)),
      engine_(std::move(engine)) {}

std::unique_ptr<Classifier> Classifier::open(const std::filesystem::path& path,
                                             std::string_view name,
                                             const EngineOptions& options) {
  auto bundle = read_bundle(path);
  auto variant = choose_variant(bundle, name);
  verify_files(bundle, variant);
  auto tokenizer = open_tokenizer(bundle, variant);
  Model model;
  model.outputs = bundle.outputs;
  model.per_token = bundle.per_token();
  model.pad_id = tokenizer->pad_id();
  Exits exits;
  if (model.per_token && !bundle.is_wordpiece) {
    throw UserError("bundle " + bundle.root.string() + " answers with parts of texts, which are "
                    "found with WordPiece only here: serve it with fleetbert serve");
  }
  if (variant.early_exit && bundle.kind == Kind::kAnswer) {
    throw UserError("variant " + variant.name + " is of answers in contexts, which no text leaves "
                    "early: export one without early exit");
  }
  if (variant.early_exit) {
    exits = read_exits(file_of(bundle, variant, "exits.json").parent_path(), model.outputs);
    model.width = exits.heads[0].width;
    for (const auto end : exits.ends) {
      model.groups.push_back(file_of(bundle, variant, group_name(end)));
    }
    exits.speed = options.speed.value_or(exits.speed);
  } else {
    model.groups = {file_of(bundle, variant, "model.nb")};
    if (options.speed) {
      throw UserError("--speed is given, but no text leaves the variant " + variant.name +
                      " early; name one with early exit, or leave --speed out");
    }
  }
  auto engine = open_engine(model, options);
  return std::unique_ptr<Classifier>(new Classifier(std::move(bundle), std::move(variant),
                                                    std::move(tokenizer), std::move(exits),
                                                    std::move(engine)));
}

Row Classifier::encode(std::string_view text, std::string_view second) const {
  const bool spans = bundle_.kind == Kind::kSpans;
  const auto& method = bundle_.long_texts.method;
  Encoding encoding;
  if (bundle_.kind == Kind::kAnswer) {
    encoding = tokenizer_->encode_question(text, second, bundle_.max_length);
  } else if (method == "cut") {
    encoding = bundle_.pair ? tokenizer_->encode(text, second, bundle_.max_length)
               : spans      ? tokenizer_->encode_with_pieces(text, bundle_.max_length)
                            : tokenizer_->encode(text, bundle_.max_length);
  } else {
    encoding = bundle_.pair ? tokenizer_->encode_whole(text, second, bundle_.max_length)
                            : tokenizer_->encode_whole(text, spans);
  }
  Row row;
  if (spans) {
    row.text = text;
    row.words = words_of(decode_utf8(text), encoding.pieces, tokenizer_->specials_before());
  } else if (bundle_.kind == Kind::kAnswer) {
    row.text = second;
    row.words = tokens_of(decode_utf8(second), encoding.pieces, encoding.first);
  }
  if (method == "windows" && encoding.ids.size() > bundle_.max_length) {
    row.first = encoding.first;
    row.last = encoding.last;
  } else if (method == "head_tail") {
    leave_middle_out(encoding, row.words, bundle_.max_length);
  }
  row.token_type_ids.assign(encoding.ids.size(), 1);
  std::fill_n(row.token_type_ids.begin(), encoding.first_length, 0);
  row.input_ids = std::move(encoding.ids);
  row.truncated = encoding.truncated;
  return row;
}

std::vector<Answer> Classifier::answer(const std::vector<const Row*>& rows) const {
  std::vector<Window> all;
  std::vector<const Row*> parts;
  std::deque<Row> made;  // whose places stay
  for (size_t text = 0; text < rows.size(); ++text) {
    const auto& row = *rows[text];
    if (row.last == 0) {
      all.push_back({text, 0, row.input_ids.size()});
      parts.push_back(&row);
      continue;
    }
    const auto room = bundle_.max_length + row.last - row.first - row.input_ids.size();
    const auto stride = std::min(bundle_.long_texts.stride, room / 2);
    for (const auto& [begin, end] : windows(row.last - row.first, room, stride)) {
      all.push_back({text, row.first + begin, row.first + end});
      made.push_back(part_of(row, row.first + begin, row.first + end));
      parts.push_back(&made.back());
    }
  }
  auto found = answer_rows(parts);
  std::vector<Answer> answers(rows.size());
  for (size_t start = 0, end = 0; start < all.size(); start = end) {
    while (end < all.size() && all[end].text == all[start].text) ++end;
    auto& answer = answers[all[start].text] = std::move(found[start]);
    if (end == start + 1) continue;
    const auto& row = *rows[all[start].text];
    std::vector<std::vector<float>> outputs{std::move(answer.logits)};
    for (auto n = start + 1; n < end; ++n) {
      outputs.push_back(std::move(found[n].logits));
      answer.layer = std::max(answer.layer, found[n].layer);
    }
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(start);
    const std::vector<Window> of_text(at, at + static_cast<std::ptrdiff_t>(end - start));
    answer.logits = bundle_.per_token()
                        ? stitch(of_text, outputs, row.first, row.last, row.input_ids.size(),
                                 bundle_.outputs)
                        : pool(of_text, outputs, bundle_.long_texts.pool, bundle_.outputs);
    if (bundle_.kind == Kind::kAnswer) take_least_none(outputs, answer.logits);
  }
  return answers;
}

std::vector<Answer> Classifier::answer_rows(const std::vector<const Row*>& rows) const {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto length = [&](size_t number) { return rows[number]->input_ids.size(); };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t one, size_t other) { return length(one) > length(other); });
  std::vector<Answer> answers(rows.size());
  for (size_t start = 0; start < order.size();) {
    Batch batch;
    batch.length = length(order[start]);  // the longest comes first
    const auto fitting = std::max<size_t>(1, kBatchTokens / batch.length);
    batch.texts = std::min(fitting, order.size() - start);
    batch.input_ids.assign(batch.texts * batch.length, tokenizer_->pad_id());
    batch.token_type_ids.assign(batch.texts * batch.length, 0);
    std::vector<double> speeds;
    for (size_t row = 0; row < batch.texts; ++row) {
      const auto& one = *rows[order[start + row]];
      const auto at = static_cast<std::ptrdiff_t>(row * batch.length);
      std::copy(one.input_ids.begin(), one.input_ids.end(), batch.input_ids.begin() + at);
      std::copy(one.token_type_ids.begin(), one.token_type_ids.end(),
                batch.token_type_ids.begin() + at);
      speeds.push_back(one.speed.value_or(exits_.speed));
    }
    const auto texts = batch.texts;
    auto found = answer(std::move(batch), std::move(speeds));
    for (size_t row = 0; row < texts; ++row) answers[order[start + row]] = std::move(found[row]);
    start += texts;
  }
  return answers;
}

std::vector<Answer> Classifier::answer(Batch batch, std::vector<double> speeds) const {
  auto answers = answer_batch(*engine_, exits_, std::move(batch), std::move(speeds));
  for (const auto& one : answers) {
    if (!std::all_of(one.logits.begin(), one.logits.end(),
                     [](float logit) { return std::isfinite(logit); })) {
      throw std::runtime_error("the model answered with something that is no number");
    }
  }
  return answers;
}

}  // namespace fleetbert
