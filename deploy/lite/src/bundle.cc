#include "bundle.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "error.h"
#include "sha256.h"

namespace fleetbert {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMaxDepth = 100;
constexpr uint64_t kMaxManifest = 64u << 20;
constexpr size_t kMaxLength = 1u << 20;

std::string read_file(const std::filesystem::path& path, uint64_t limit) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > limit) {
    throw UserError(path.string() + " has " + std::to_string(size) + " bytes, which is too many: "
                    "copy the bundle again");
  }
  errno = error ? error.value() : 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (error || !file) {
    throw UserError(path.string() + " cannot be read: " + std::strerror(errno ? errno : EIO));
  }
  return text;
}

// Reads fields, and says which one is wrong.
class Reader {
 public:
  Reader(const json& value, std::string where, const std::filesystem::path& path)
      : value_(value), where_(std::move(where)), path_(path) {}

  Reader at(const char* key) const {
    if (!value_.is_object()) fail("has to be an object");
    const auto found = value_.find(key);
    if (found == value_.end()) fail(std::string("has no ") + key);
    return Reader(*found, where_.empty() ? key : where_ + "." + key, path_);
  }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  std::vector<Reader> list() const {
    if (!value_.is_array()) fail("has to be a list");
    std::vector<Reader> found;
    for (size_t i = 0; i < value_.size(); ++i) {
      found.emplace_back(value_[i], where_ + "." + std::to_string(i), path_);
    }
    return found;
  }
  std::string text() const {
    if (!value_.is_string()) fail("has to be a string");
    return value_.get<std::string>();
  }
  bool flag() const {
    if (!value_.is_boolean()) fail("has to be true or false");
    return value_.get<bool>();
  }
  uint64_t number() const {
    if (!value_.is_number_unsigned()) fail("has to be a whole number");
    return value_.get<uint64_t>();
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(path_.string() + ": " + (where_.empty() ? "the manifest" : where_) + " " +
                    what + "; restore the file or export again");
  }

 private:
  const json& value_;
  std::string where_;
  const std::filesystem::path& path_;
};

// As fleetbert/bundle.py has it: variant/file, with nothing that leads out of the bundle.
bool stays_inside(const std::string& path) {
  if (path.empty() || path.find_first_of(std::string("\\\0", 2)) != std::string::npos) return false;
  size_t parts = 0;
  for (const auto& part : std::filesystem::u8path(path)) {
    if (part == ".." || part == "/" || part.empty()) return false;
    ++parts;
  }
  return parts >= 2;
}

File read_model(const Reader& variant) {
  for (const auto& entry : variant.at("files").list()) {
    File file{entry.at("path").text(), entry.at("sha256").text(), entry.at("size").number()};
    if (!stays_inside(file.path)) {
      entry.at("path").fail("is not of the form variant/file inside the bundle");
    }
    if (std::filesystem::u8path(file.path).filename() == "model.nb") return file;
  }
  variant.at("files").fail("has no model.nb");
}

std::string text_or_nothing(const Reader& reader, const char* section, const char* key) {
  if (!reader.has(section) || !reader.at(section).has(key)) return "";
  return reader.at(section).at(key).text();
}

json parse(const std::string& text, const std::filesystem::path& path) {
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > static_cast<int>(kMaxDepth)) {
      throw UserError(path.string() + " is nested too deep: copy the bundle again");
    }
    return true;
  };
  try {
    return json::parse(text, check_depth);
  } catch (const json::exception&) {
    throw UserError(path.string() + " is not JSON: copy the bundle again");
  }
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
  const auto manifest = parse(read_file(path, kMaxManifest), path);
  const Reader reader(manifest, "", path);
  const auto format = reader.at("format_version").number();
  if (format != kFormat) {
    throw UserError(path.string() + " has format_version " + std::to_string(format) +
                    " and this program reads " + std::to_string(kFormat) +
                    ": take the fleetbert-lite of the fleetbert that wrote it");
  }
  Bundle bundle;
  bundle.root = root;
  const auto task = reader.at("task").at("name").text();
  if (task != "classification" && task != "pair_classification") {
    reader.at("task").at("name").fail("is " + task + ", which has no answers to give: export a "
                                      "classifier");
  }
  bundle.pair = task == "pair_classification";
  for (const auto& label : reader.at("task").at("labels").list()) {
    bundle.labels.push_back(label.text());
  }
  if (bundle.labels.size() < 2) reader.at("task").at("labels").fail("has fewer than two labels");
  const auto length = reader.at("max_length").number();
  if (length < 3 || length > kMaxLength) reader.at("max_length").fail("is out of bounds");
  bundle.max_length = static_cast<size_t>(length);
  const auto tokenizer = reader.at("tokenizer");
  if (tokenizer.at("kind").text() != "wordpiece") tokenizer.at("kind").fail("is not wordpiece");
  bundle.lowercase = tokenizer.at("lowercase").flag();
  bundle.vocab_sha256 = tokenizer.at("sha256").text();
  for (const auto& entry : reader.at("variants").list()) {
    if (entry.at("kind").text() != "paddle-lite") continue;
    Variant variant;
    variant.name = entry.at("name").text();
    const auto targets = entry.at("runs_on").list();
    if (targets.size() != 1) entry.at("runs_on").fail("has to name one processor");
    variant.target = targets[0].text();
    variant.precision = text_or_nothing(entry, "extra", "precision");
    variant.converter = text_or_nothing(entry, "versions", "opt");
    variant.model = read_model(entry);
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

void verify_model(const Bundle& bundle, const Variant& variant) {
  const auto path = bundle.model_path(variant);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) {
    throw UserError(path.string() + " cannot be read (" + error.message() + "): copy the folder " +
                    path.parent_path().filename().string() + " of the bundle too");
  }
  if (size != variant.model.size) {
    throw UserError(path.string() + " has " + std::to_string(size) + " bytes instead of " +
                    std::to_string(variant.model.size) + ": copy the bundle again");
  }
  if (sha256_of_file(path) != variant.model.sha256) {
    throw UserError(path.string() + " is not the file that was exported (its sha256 differs from "
                    "the manifest's): copy the bundle again");
  }
}

std::string read_vocab(const Bundle& bundle) {
  auto text = read_file(bundle.vocab_path(), kMaxManifest);
  if (sha256(text) != bundle.vocab_sha256) {
    throw UserError(bundle.vocab_path().string() + " is not the file that was exported (its sha256 "
                    "differs from the manifest's): copy the bundle again");
  }
  return text;
}

}  // namespace fleetbert
