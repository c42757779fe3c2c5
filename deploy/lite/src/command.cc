// fleetbert-lite: asks a bundle's model on a board.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "answers.h"
#include "arguments.h"
#include "classifier.h"
#include "error.h"
#include "unicode.h"

namespace fleetbert {
namespace {

using nlohmann::ordered_json;

constexpr char kUsage[] = R"(usage: fleetbert-lite COMMAND --bundle DIR [options]

  predict --bundle DIR [--input FILE]   answer the lines of FILE (default: standard input), a text
                                        or two texts with a tab between; print a JSON object per line,
                                        of an invalid line {"error": ...}; the exit code is 2 where
                                        no line could be answered
  bench --bundle DIR [--batch 1] [--length 64] [--warmup 5] [--repeats 50] [--json yes]
                                        measure the speed on batches of random tokens
  info --bundle DIR                     list the bundle's variants, and which of them run here

  --variant NAME       the variant to run (default: the only one for this processor)
  --threads N          threads of the engine (1)
  --power-mode MODE    high, low, full, no-bind, rand-high or rand-low cores (no-bind)
  --speed S            early exit: a text exits when its uncertainty is below S, from 0 (never) to 1
                       (default: the variant's)
  --engine lite|fake   fake: for tests, answers computed from the token ids alone
)";

constexpr size_t kWindow = 256;  // lines that are read before they are answered

const std::vector<std::string_view> kEngine = {"bundle",     "variant", "threads",
                                               "power-mode", "speed",   "engine",
                                               "fake-delay-ms"};

std::vector<std::string_view> with_engine(std::vector<std::string_view> names) {
  names.insert(names.end(), kEngine.begin(), kEngine.end());
  return names;
}

Arguments parse(int argc, char** argv, const std::vector<std::string_view>& names) {
  Arguments arguments(argc, argv, 2, names);
  if (!arguments.words().empty()) {
    throw UserError("'" + arguments.words()[0] + "' is no option; see --help");
  }
  return arguments;
}

std::unique_ptr<Classifier> open(const Arguments& arguments) {
  return Classifier::open(std::filesystem::u8path(arguments.needed("bundle")),
                          arguments.text("variant"), engine_options(arguments));
}

// A line's row, or why it has none.
struct Line {
  Row row;
  std::string error;
};

// `number` is the line's, from 1. What a line is, and the sentences, are as in `fleetbert predict`.
Line read_line(const Classifier& classifier, std::string_view text, size_t number) {
  const auto where = "line " + std::to_string(number) + ": ";
  if (number == 1 && text.rfind("\xEF\xBB\xBF", 0) == 0) text.remove_prefix(3);
  text = text.substr(0, text.find_last_not_of('\r') + 1);
  if (!is_utf8(text)) return {{}, where + "is not UTF-8"};
  std::vector<std::string_view> texts = {text};
  if (classifier.bundle().pair) {
    const auto columns = 1 + std::count(text.begin(), text.end(), '\t');
    if (columns != 2) {
      return {{}, where + "has " + std::to_string(columns) +
                      " tab-separated columns where a pair needs two; write both texts "
                      "with one tab between them"};
    }
    const auto tab = text.find('\t');
    texts = {text.substr(0, tab), text.substr(tab + 1)};
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto fault = fault_of(texts[i]);
    if (!fault.empty()) return {{}, where + (i ? "'text_b' " : "'text_a' ") + fault};
  }
  return {classifier.encode(texts[0], texts.size() > 1 ? texts[1] : ""), ""};
}

int predict(int argc, char** argv) {
  const auto arguments = parse(argc, argv, with_engine({"input"}));
  const auto classifier = open(arguments);
  const auto path = arguments.text("input", "-");
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) throw UserError(path + " cannot be read");
  }
  std::istream& input = path == "-" ? std::cin : file;
  size_t read = 0, failed = 0, truncated = 0;
  while (input) {
    std::vector<Line> lines;
    for (std::string text; lines.size() < kWindow && std::getline(input, text);) {
      lines.push_back(read_line(*classifier, text, read + lines.size() + 1));
    }
    std::vector<const Row*> rows;
    for (const auto& line : lines) {
      if (line.error.empty()) rows.push_back(&line.row);
    }
    const auto answers = classifier->answer(rows);
    size_t next = 0;
    for (const auto& line : lines) {
      ordered_json answer;
      if (line.error.empty()) {
        answer = in_json(classifier->bundle(), line.row, answers[next++]);
      } else {
        answer["error"] = line.error;
      }
      std::cout << answer.dump() << '\n';
      failed += !line.error.empty();
      truncated += line.row.truncated;
    }
    read += lines.size();
  }
  if (failed && failed == read) {
    throw UserError("none of the " + std::to_string(read) +
                    " lines could be answered; see their error");
  }
  if (failed) {
    std::cerr << failed << " of " << read << " lines could not be answered: see their error\n";
  }
  if (truncated) {
    std::cerr << truncated << " texts were truncated to "
              << classifier->bundle().max_length << " tokens\n";
  }
  return 0;
}

// Peak memory of this process in MB.
double peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

int bench(int argc, char** argv) {
  const auto arguments =
      parse(argc, argv, with_engine({"batch", "length", "warmup", "repeats", "json"}));
  const auto warmup = arguments.number("warmup", 5, 0, 1000000);
  const auto repeats = arguments.number("repeats", 50, 1, 1000000);
  const auto classifier = open(arguments);
  const auto most = static_cast<long>(classifier->bundle().max_length);
  Batch batch;
  batch.texts = static_cast<size_t>(arguments.number("batch", 1, 1, 4096));
  batch.length = static_cast<size_t>(arguments.number("length", std::min(64L, most), 1, most));
  std::mt19937 random(0);
  const auto vocab_size = static_cast<int64_t>(classifier->tokenizer().vocab_size());
  std::uniform_int_distribution<int64_t> ids(1, vocab_size - 1);
  batch.input_ids.resize(batch.texts * batch.length);
  for (auto& id : batch.input_ids) id = ids(random);
  batch.token_type_ids.assign(batch.input_ids.size(), 0);
  const std::vector<double> speeds(batch.texts, classifier->speed());
  for (long i = 0; i < warmup; ++i) classifier->answer(batch, speeds);
  std::vector<double> times;  // milliseconds
  double sum = 0, layers = 0;
  for (long i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const auto answers = classifier->answer(batch, speeds);
    const std::chrono::duration<double, std::milli> took =
        std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
    sum += took.count();
    for (const auto& answer : answers) layers += static_cast<double>(answer.layer);
  }
  std::sort(times.begin(), times.end());
  const auto percentile = [&](double share) {  // nearest rank
    const auto rank = std::ceil(share * static_cast<double>(times.size()));
    return times[static_cast<size_t>(std::max(rank, 1.0)) - 1];
  };
  const auto options = engine_options(arguments);
  ordered_json found;
  found["variant"] = classifier->variant().name;
  found["engine"] = classifier->engine().version();
  found["threads"] = options.threads;
  found["power_mode"] = options.power_mode;
  found["batch"] = batch.texts;
  found["length"] = batch.length;
  found["warmup"] = warmup;
  found["repeats"] = repeats;
  if (classifier->variant().early_exit) {
    found["speed"] = classifier->speed();
    found["mean_layers"] = layers / static_cast<double>(batch.texts * times.size());
  }
  found["mean_ms"] = sum / static_cast<double>(repeats);
  found["p50_ms"] = percentile(0.5);
  found["p90_ms"] = percentile(0.9);
  found["p99_ms"] = percentile(0.99);
  found["min_ms"] = times.front();
  found["max_ms"] = times.back();
  found["texts_per_second"] = 1000 * static_cast<double>(batch.texts * times.size()) / sum;
  found["peak_memory_mb"] = peak_memory();
  if (arguments.has("json")) {
    std::cout << found.dump() << '\n';
    return 0;
  }
  for (const auto& [key, value] : found.items()) {
    const auto text = value.is_string() ? value.get<std::string>() : value.dump();
    std::cout << key << std::string(18 - key.size(), ' ') << text << '\n';
  }
  return 0;
}

int info(int argc, char** argv) {
  const auto arguments = parse(argc, argv, {"bundle"});
  const auto bundle = read_bundle(std::filesystem::u8path(arguments.needed("bundle")));
  std::cout << "task         " << bundle.task << ", " << (bundle.pair ? "pairs of texts" : "texts")
            << "\nlabels      ";
  for (const auto& label : bundle.labels) std::cout << ' ' << label;
  std::cout << "\nmax length   " << bundle.max_length << " tokens\nthis program " << this_target()
            << (has_lite() ? ", with Paddle Lite" : ", built without Paddle Lite") << '\n';
  for (const auto& variant : bundle.variants) {
    std::string state = "whole";
    if (variant.target != this_target()) {
      state = "for another processor";
    } else {
      try {
        verify_files(bundle, variant);
      } catch (const UserError& error) {
        state = error.what();
      }
    }
    uint64_t bytes = 0;
    for (const auto& file : variant.files) bytes += file.size;
    std::cout << variant.name << ": " << variant.precision << " for " << variant.target
              << (variant.early_exit ? " with early exit, " : ", ") << bytes
              << " bytes, converted by Paddle Lite " << variant.converter << "; " << state << '\n';
  }
  return 0;
}

int command(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  const bool lost = std::count(argv, argv + argc, std::string_view("--help")) > 0;
  if (lost || name == "--help" || name == "-h" || name == "help") {
    std::cout << kUsage;
    return 0;
  }
  if (name == "predict") return predict(argc, argv);
  if (name == "bench") return bench(argc, argv);
  if (name == "info") return info(argc, argv);
  throw UserError("'" + name + "' is no command; choose predict, bench or info");
}

}  // namespace
}  // namespace fleetbert

int main(int argc, char** argv) {
  return fleetbert::run_program(fleetbert::command, argc, argv);
}
