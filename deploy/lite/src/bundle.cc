#include "bundle.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "error.h"
#include "json_file.h"
#include "sha256.h"
#include "unigram.h"

namespace fleetbert {
namespace {

// In format 1 what only some kinds of variants say is in `extra`.
constexpr int kOldestFormat = 1, kFormat = 2;
constexpr uint64_t kMaxManifest = 64u << 20;
constexpr size_t kMaxLength = 1u << 20;
constexpr double kThreshold = 0.5;  // where a bundle has no other for a label
constexpr size_t kStride = 128;  // tokens that windows of contexts share, where a bundle has none

// As fleetbert/bundle/variants.py has it: variant/file, with nothing that leads out of the bundle.
bool stays_inside(const std::string& path) {
  if (path.empty() || path.find_first_of(std::string("\\\0", 2)) != std::string::npos) return false;
  size_t parts = 0;
  for (const auto& part : std::filesystem::u8path(path)) {
    if (part == ".." || part == "/" || part.empty()) return false;
    ++parts;
  }
  return parts >= 2;
}

std::vector<File> read_files(const Reader& variant) {
  std::vector<File> files;
  for (const auto& entry : variant.at("files").list()) {
    files.push_back({entry.at("path").text(), entry.at("sha256").text(),
                     entry.at("size").number()});
    if (!stays_inside(files.back().path)) {
      entry.at("path").fail("is not of the form variant/file inside the bundle");
    }
  }
  return files;
}

const File* find_file(const std::vector<File>& files, const std::string& name) {
  for (const auto& file : files) {
    if (std::filesystem::u8path(file.path).filename() == name) return &file;
  }
  return nullptr;
}

std::string text_or_nothing(const Reader& reader, const char* section, const char* key) {
  if (!reader.has(section) || !reader.at(section).has(key)) return "";
  return reader.at(section).at(key).text();
}

// `settings` names what is not usual; strip_accents is as `lowercase` where it is not named.
WordPieceSettings read_wordpiece(const Reader& tokenizer) {
  WordPieceSettings settings;
  settings.lowercase = settings.strip_accents = tokenizer.at("lowercase").flag();
  if (!tokenizer.has("settings")) return settings;
  const auto said = tokenizer.at("settings");
  for (const auto& name : said.keys()) {
    const auto setting = said.at(name);
    if (name == "strip_accents") {
      settings.strip_accents = setting.flag();
    } else if (name == "tokenize_chinese_chars") {
      settings.tokenize_chinese_chars = setting.flag();
    } else if (name == "clean_text") {
      settings.clean_text = setting.flag();
    } else if (name == "one_type") {
      settings.one_type = setting.flag();
    } else if (name == "truncation_side") {
      settings.left = setting.text() == "left";
    } else if (name == "pad_token") {
      settings.pad = setting.text();
    } else if (name == "unk_token") {
      settings.unknown = setting.text();
    } else if (name == "cls_token") {
      settings.first = setting.text();
    } else if (name == "sep_token") {
      settings.separator = setting.text();
    } else if (name != "mask_token") {  // no text has one here
      setting.fail("is not known here: take the fleetbert-lite of the fleetbert that wrote it");
    }
  }
  return settings;
}

// The kind of answers, and whether it is of pairs. Manifests say it since `task.shape`; the tasks of
// older ones are known by name.
void read_shape(const Reader& task, Bundle& bundle) {
  static const std::map<std::string, Kind> kinds = {
      {"label", Kind::kLabel},   {"labels", Kind::kLabels}, {"number", Kind::kNumber},
      {"vector", Kind::kVector}, {"spans", Kind::kSpans},   {"answer", Kind::kAnswer},
  };
  static const std::map<std::string, std::string> older = {
      {"classification", "label"},     {"pair_classification", "label"},
      {"regression", "number"},        {"pair_regression", "number"},
      {"ranking", "number"},           {"multi_label_classification", "labels"},
      {"token_classification", "spans"}, {"embedding", "vector"},
  };
  std::string answer;
  if (task.has("shape")) {
    answer = task.at("shape").at("answer").text();
    bundle.pair = task.at("shape").at("pair").flag();
  } else if (const auto row = older.find(bundle.task); row != older.end()) {
    answer = row->second;
    bundle.pair = bundle.task.rfind("pair_", 0) == 0 || bundle.task == "ranking";
  }
  const auto kind = kinds.find(answer);
  if (kind == kinds.end()) {
    task.at("name").fail("is " + bundle.task + ", which has no answers to give here: serve it with "
                         "fleetbert serve, or export a model of another task");
  }
  bundle.kind = kind->second;
  if (bundle.per_token() && bundle.pair != (bundle.kind == Kind::kAnswer)) {
    task.at("shape").fail("is of spans of pairs or answers without contexts, which boards do not "
                          "give: serve it with fleetbert serve");
  }
}

int64_t integer_of(const Reader& label) {
  const auto text = label.text();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    label.fail("is no integer, and task.integer_labels says that labels are: export again");
  }
  return value;
}

void read_task(const Reader& task, Bundle& bundle) {
  bundle.task = task.at("name").text();
  read_shape(task, bundle);
  for (const auto& label : task.at("labels").list()) bundle.labels.push_back(label.text());
  if (task.has("integer_labels") && task.at("integer_labels").flag()) {
    for (const auto& label : task.at("labels").list()) bundle.integers.push_back(integer_of(label));
  }
  const size_t least = bundle.kind == Kind::kLabels                                  ? 1
                       : bundle.kind == Kind::kLabel || bundle.kind == Kind::kSpans ? 2
                                                                                    : 0;
  if (bundle.labels.size() < least) {
    task.at("labels").fail(least == 2 ? "has fewer than two labels" : "has no label");
  }
  bundle.outputs = bundle.labels.size();
  if (bundle.kind == Kind::kNumber) bundle.outputs = 1;
  if (bundle.kind == Kind::kAnswer) bundle.outputs = 2;  // where it begins and ends
  if (bundle.kind == Kind::kVector) {
    const auto width = task.at("width").number();
    if (width < 1 || width > kMaxLength) task.at("width").fail("is out of bounds");
    bundle.outputs = static_cast<size_t>(width);
  }
  if (bundle.kind != Kind::kLabels && bundle.kind != Kind::kAnswer) return;
  bundle.thresholds.assign(bundle.labels.size(), kThreshold);
  if (!task.has("thresholds")) return;
  const auto thresholds = task.at("thresholds");
  for (size_t i = 0; i < bundle.labels.size(); ++i) {
    if (!thresholds.has(bundle.labels[i].c_str())) continue;
    const auto threshold = thresholds.at(bundle.labels[i]);
    bundle.thresholds[i] = threshold.real();
    if (!(bundle.thresholds[i] >= 0 && bundle.thresholds[i] <= 1)) {
      threshold.fail("is not from 0 to 1");
    }
  }
}

// What becomes of texts with more than max_length tokens, which is known already.
void read_long_texts(const Reader& reader, Bundle& bundle) {
  auto& long_texts = bundle.long_texts;
  long_texts.method = reader.at("method").text();
  if (long_texts.method != "windows" && long_texts.method != "head_tail") {
    reader.at("method").fail("is neither windows nor head_tail");
  }
  const auto stride = reader.at("stride").number();
  if (stride < 0 || static_cast<size_t>(stride) > bundle.max_length / 2) {
    reader.at("stride").fail("is out of bounds");
  }
  long_texts.stride = static_cast<size_t>(stride);
  long_texts.pool = reader.at("pool").text();
}

}  // namespace

std::string_view this_target() {
#if defined(__aarch64__)
  return "armv8";
#elif defined(__arm__)
  return "armv7";
#else
  return "x86";
#endif
}

Bundle read_bundle(const std::filesystem::path& root) {
  const auto path = root / "manifest.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw UserError(root.string() + " is not a bundle: it has no manifest.json; name the folder "
                    "that fleetbert wrote");
  }
  const auto manifest = parse_json(read_file(path, kMaxManifest), path);
  const Reader reader(manifest, "", path);
  const auto format = reader.at("format_version").number();
  if (format < kOldestFormat || format > kFormat) {
    throw UserError(path.string() + " has format_version " + std::to_string(format) +
                    " and this program reads " + std::to_string(kOldestFormat) +
                    " and " + std::to_string(kFormat) +
                    ": take the fleetbert-lite of the fleetbert that wrote it");
  }
  Bundle bundle;
  bundle.root = root;
  read_task(reader.at("task"), bundle);
  const auto length = reader.at("max_length").number();
  if (length < 3 || length > kMaxLength) reader.at("max_length").fail("is out of bounds");
  bundle.max_length = static_cast<size_t>(length);
  if (reader.has("long_texts")) read_long_texts(reader.at("long_texts"), bundle);
  if (bundle.kind == Kind::kAnswer && bundle.long_texts.method != "windows") {
    bundle.long_texts = {"windows", std::min(kStride, bundle.max_length / 3), "mean"};
  }
  const auto tokenizer = reader.at("tokenizer");
  bundle.is_wordpiece = tokenizer.at("kind").text() == "wordpiece";
  if (bundle.is_wordpiece) {
    bundle.wordpiece = read_wordpiece(tokenizer);
    bundle.vocab_sha256 = tokenizer.at("sha256").text();
  } else if (tokenizer.at("kind").text() != "tokenizer.json") {
    tokenizer.at("kind").fail("is neither wordpiece nor tokenizer.json");
  }
  for (const auto& entry : reader.at("variants").list()) {
    const auto kind = entry.at("kind").text();
    if (kind != "paddle-lite" && kind != "paddle-lite-early-exit") continue;
    Variant variant;
    variant.early_exit = kind != "paddle-lite";
    variant.name = entry.at("name").text();
    const auto targets = entry.at("runs_on").list();
    if (targets.size() != 1) entry.at("runs_on").fail("has to name one processor");
    variant.target = targets[0].text();
    variant.precision = format == 1 ? text_or_nothing(entry, "extra", "precision")
                                    : entry.has("precision") ? entry.at("precision").text() : "";
    variant.converter = text_or_nothing(entry, "versions", "opt");
    variant.files = read_files(entry);
    const auto* needed = variant.early_exit ? "exits.json" : "model.nb";
    if (find_file(variant.files, needed) == nullptr) {
      entry.at("files").fail(std::string("has no ") + needed);
    }
    bundle.variants.push_back(std::move(variant));
  }
  return bundle;
}

const Variant& choose_variant(const Bundle& bundle, std::string_view name) {
  std::string names, fitting;
  const Variant* found = nullptr;
  size_t fit = 0;
  for (const auto& variant : bundle.variants) {
    names += (names.empty() ? "" : ", ") + variant.name;
    if (!name.empty() ? variant.name == name : variant.target == this_target()) {
      found = &variant;
      ++fit;
      fitting += (fitting.empty() ? "" : ", ") + variant.name;
    }
  }
  const auto target = std::string(this_target());
  if (found == nullptr && !name.empty()) {
    throw UserError("bundle " + bundle.root.string() + " has no variant " + std::string(name) +
                    " for Paddle Lite; it has: " + (names.empty() ? "none" : names));
  }
  if (found == nullptr) {
    throw UserError("bundle " + bundle.root.string() + " has no variant for " + target +
                    "; it has: " + (names.empty() ? "none" : names) +
                    "; run fleetbert export --format lite --target " + target);
  }
  if (name.empty() && fit > 1) {
    throw UserError("bundle " + bundle.root.string() + " has several variants for " + target +
                    "; name one with --variant: " + fitting);
  }
  if (found->target != this_target()) {
    throw UserError("variant " + found->name + " runs on " + found->target +
                    " and this program is for " + target + ", where it would answer nonsense; run "
                    "fleetbert export --format lite --target " + target);
  }
  return *found;
}

std::filesystem::path file_of(const Bundle& bundle, const Variant& variant,
                              const std::string& name) {
  const auto* found = find_file(variant.files, name);
  if (found != nullptr) return bundle.path_of(*found);
  throw UserError("variant " + variant.name + " of bundle " + bundle.root.string() + " has no " +
                  name + ": export it again");
}

void verify_files(const Bundle& bundle, const Variant& variant) {
  for (const auto& file : variant.files) {
    const auto path = bundle.path_of(file);
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error) {
      throw UserError(path.string() + " cannot be read (" + error.message() +
                      "): copy the folder " + path.parent_path().filename().string() +
                      " of the bundle too");
    }
    if (size != file.size) {
      throw UserError(path.string() + " has " + std::to_string(size) + " bytes instead of " +
                      std::to_string(file.size) + ": copy the bundle again");
    }
    if (sha256_of_file(path) != file.sha256) {
      throw UserError(path.string() + " is not the file that was exported (its sha256 differs "
                      "from the manifest's): copy the bundle again");
    }
  }
}

std::unique_ptr<Tokenizer> open_tokenizer(const Bundle& bundle, const Variant& variant) {
  std::unique_ptr<Tokenizer> opened;
  if (bundle.is_wordpiece) {
    const auto text = read_file(bundle.vocab_path(), kMaxManifest);
    if (sha256(text) != bundle.vocab_sha256) {
      throw UserError(bundle.vocab_path().string() + " is not the file that was exported (its "
                      "sha256 differs from the manifest's): copy the bundle again");
    }
    opened = std::make_unique<WordPiece>(text, bundle.vocab_path(), bundle.wordpiece);
  } else {
    opened = std::make_unique<Unigram>(file_of(bundle, variant, "unigram.safetensors"));
  }
  const size_t least = bundle.kind == Kind::kAnswer        ? 2  // of question and context
                       : bundle.long_texts.method == "cut" ? 0
                                                           : 1;
  const auto needed = opened->special_tokens(bundle.pair) + least;
  if (bundle.max_length < needed) {
    throw UserError((bundle.root / "manifest.json").string() + ": max_length is " +
                    std::to_string(bundle.max_length) + ", and its tokenizer needs " +
                    std::to_string(needed) + ": export again");
  }
  return opened;
}

}  // namespace fleetbert
