// Texts in, outputs out: a bundle's tokenizer and one of its variants.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle.h"
#include "engine.h"
#include "exits.h"
#include "tokenizer.h"
#include "words.h"

namespace fleetbert {

// A text: a row of the engine's, or several, of its windows.
struct Row {
  std::vector<int64_t> input_ids;
  std::vector<int64_t> token_type_ids;  // as many
  bool truncated = false;
  size_t first = 0, last = 0;  // where the tokens begin and end that windows divide; 0: none
  std::string text;  // that answers have characters of: of spans the text, else the context
  std::vector<Word> words;  // of spans its words, which are tagged; else its tokens
  std::optional<double> speed;  // of early exit; nothing: the classifier's own
};

class Classifier {
 public:
  // Opens a variant (empty: the only one for this processor); all is checked. Throws UserError.
  static std::unique_ptr<Classifier> open(const std::filesystem::path& bundle,
                                          std::string_view variant, const EngineOptions& options);

  // Safe to call from several threads. `second` only where the bundle answers pairs.
  Row encode(std::string_view text, std::string_view second) const;

  // The rows' answers, in their order. Rows of like length share a batch. One thread at a time.
  std::vector<Answer> answer(const std::vector<const Row*>& rows) const;

  // Answers of a batch whose texts leave at the speeds.
  std::vector<Answer> answer(Batch batch, std::vector<double> speeds) const;

  // Under which uncertainty texts leave that name no speed.
  double speed() const { return exits_.speed; }

  const Bundle& bundle() const { return bundle_; }
  const Variant& variant() const { return variant_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Engine& engine() const { return *engine_; }

 private:
  // The rows' answers, each of no more tokens than the model reads at once.
  std::vector<Answer> answer_rows(const std::vector<const Row*>& rows) const;

  Classifier(Bundle bundle, Variant variant, std::unique_ptr<Tokenizer> tokenizer,
             Exits exits, std::unique_ptr<Engine> engine);

  Bundle bundle_;
  Variant variant_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Exits exits_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace fleetbert
