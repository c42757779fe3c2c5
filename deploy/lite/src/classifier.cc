#include "classifier.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "error.h"
#include "unicode.h"

namespace fleetbert {
namespace {

// Boards have small caches: more in a batch does not make a text cheaper.
constexpr size_t kBatchTokens = 1024;

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
  model.per_token = bundle.kind == Kind::kSpans;
  model.pad_id = tokenizer->pad_id();
  Exits exits;
  if (model.per_token && !bundle.is_wordpiece) {
    throw UserError("bundle " + bundle.root.string() + " answers with spans, whose words are found "
                    "with WordPiece only here: serve it with fleetbert serve");
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
  auto encoding = bundle_.pair ? tokenizer_->encode(text, second, bundle_.max_length)
                  : spans      ? tokenizer_->encode_with_pieces(text, bundle_.max_length)
                               : tokenizer_->encode(text, bundle_.max_length);
  Row row;
  if (spans) {
    row.text = text;
    row.words = words_of(decode_utf8(text), encoding.pieces, tokenizer_->specials_before());
  }
  row.token_type_ids.assign(encoding.ids.size(), 1);
  std::fill_n(row.token_type_ids.begin(), encoding.first_length, 0);
  row.input_ids = std::move(encoding.ids);
  row.truncated = encoding.truncated;
  return row;
}

std::vector<Answer> Classifier::answer(const std::vector<const Row*>& rows) const {
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
