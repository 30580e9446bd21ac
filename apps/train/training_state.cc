// SPDX-License-Identifier: Apache-2.0
#include "apps/train/training_state.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "common/error.h"
#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::train {
namespace {

constexpr std::string_view kVersion = "3";
constexpr const char* kVersionKey = "ddprun_train";
constexpr std::size_t kNumbersPerEpoch = 6;

template <typename Number>
std::string number_text(Number number) {
  char text[64];  // room for the shortest text that reads back as the same number
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

template <typename Number>
Number to_number(std::string_view text, const std::string& key) {
  if (const auto number = parsed_number<Number>(text)) return *number;
  throw Error(ErrorCode::kProtocol,
              concat("its ", key, " is no such number: \"", one_line(text.substr(0, 40)), "\""));
}

std::string compression_from_text(std::string_view text) {
  try {
    return to_string(parse_compression(text));
  } catch (const Error& error) {
    throw Error(ErrorCode::kProtocol, concat("its compress: ", error.what()));
  }
}

template <typename Number>
std::string field_text(Number number) {
  return number_text(number);
}
std::string field_text(const std::string& text) { return text; }

std::string field_text(const std::vector<std::string>& names) { return listed(names, ","); }

// Writes one line for each epoch.
std::string field_text(const std::vector<EpochResult>& epochs) {
  std::string text;
  for (const EpochResult& each : epochs) {
    text += number_text(each.epoch) + ' ' + number_text(each.train_loss) + ' ' +
            number_text(each.test_loss) + ' ' + number_text(each.test_accuracy) + ' ' +
            number_text(each.seconds) + ' ' + number_text(each.samples_per_second) + '\n';
  }
  return text;
}

// Reads a value back from the text of `key`.
template <typename Number>
void read_field(const std::string& text, const char* key, Number& number) {
  number = to_number<Number>(text, key);
}
void read_field(const std::string& text, const char* key, std::string& value) {
  value = key == std::string_view("compress") ? compression_from_text(text) : text;
}

void read_field(const std::string& list, const char*, std::vector<std::string>& names) {
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) names.push_back(name);
}

void read_field(const std::string& all, const char* key, std::vector<EpochResult>& epochs) {
  std::string_view text = all;
  std::vector<std::string_view> words;
  while (!text.empty()) words.push_back(take_until(text, " \n"));
  if (words.size() % kNumbersPerEpoch != 0) {
    throw Error(ErrorCode::kProtocol, "its epochs are no list of six numbers each");
  }
  for (std::size_t i = 0; i < words.size(); i += kNumbersPerEpoch) {
    const auto number = [&](std::size_t place) { return to_number<double>(words[i + place], key); };
    epochs.push_back({.epoch = to_number<int>(words[i], key),
                      .train_loss = number(1),
                      .test_loss = number(2),
                      .test_accuracy = number(3),
                      .seconds = number(4),
                      .samples_per_second = number(5)});
  }
}

// Visits all that a checkpoint keeps, in the order in which it is read. `optional(…)`: may be
// missing.
template <typename State, typename Use, typename Optional>
void each_field(State& state, const Use& use, const Optional& optional) {
  use("batch_size", state.run.batch_size);
  use("accumulate", state.run.accumulate);
  use("uneven_inputs", state.run.uneven_inputs);
  use("optimizer", state.run.optimizer);
  use("lr", state.run.lr);
  use("gamma", state.run.gamma);
  use("compress", state.run.compress);
  use("ignore_parameters", state.run.ignore_parameters);
  use("seed", state.run.seed);
  use("num_images", state.run.num_images);
  use("image_checksum", state.run.image_checksum);
  optional("local_steps", state.run.local_steps);
  optional("batch_norm", state.run.batch_norm);
  optional("num_threads", state.num_threads);
  use("step", state.step);
  use("epochs", state.epochs);
  use("samples", state.samples);
  use("loss_sum", state.loss_sum);
  use("seconds", state.seconds);
  optional("gradient_order", state.gradient_order);
}

// Returns the optimiser with its options. A cosine's length is the whole training's, so it is part
// of them.
std::string optimizer_text(const Options& options) {
  std::string text = concat(
      to_string(options.optimizer), " --weight-decay=", number_text(options.weight_decay),
      " --clip-norm=", number_text(options.clip_norm), " --schedule=", to_string(options.schedule),
      " --warmup-steps=", number_text(options.warmup_steps), " --amp=", to_string(options.amp));
  if (options.optimizer == OptimizerChoice::kSgd)
    text += " --momentum=" + number_text(options.momentum);
  if (options.schedule == ScheduleChoice::kCosine)
    text += " --epochs=" + number_text(options.num_epochs);
  return text;
}

// Returns the options for local steps. Ranks that are threads train as ranks that are processes do,
// so --mode=dp is not part of them.
std::string local_steps_text(const Options& options) {
  if (options.mode == ModeChoice::kAsync)
    return "--mode=async --staleness=" + number_text(options.staleness);
  if (options.sync_every <= 1) return "";
  return concat("--sync-every=", options.sync_every, " --sync-after=", options.sync_after,
                options.sync_optimizer ? " --sync-optimizer" : "");
}

std::string sorted_list(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return field_text(names);
}

// Compares two optimizer_text(). The first word is --optimizer's; the others are flags with their
// values.
std::string optimizer_difference(const std::string& there, const std::string& here) {
  std::istringstream words_there(there), words_here(here);
  std::string a, b;
  for (bool is_first = true; words_there >> a && words_here >> b; is_first = false) {
    if (a == b) continue;
    const std::size_t name = a.find('=');
    if (!is_first && (name == a.npos || a.substr(0, name) != b.substr(0, name))) break;
    return is_first ? concat("--optimizer is ", one_line(a), " there, ", b, " here")
                    : concat(one_line(a.substr(0, name)), " is ", one_line(a.substr(name + 1)),
                             " there, ", b.substr(name + 1), " here");
  }
  return concat("--optimizer is ", one_line(there), " there, ", here, " here");
}

}  // namespace

RunIdentity identity_of(const Options& options, const DataSet& data) {
  return {.batch_size = options.batch_size,
          .accumulate = options.accumulate,
          .uneven_inputs = to_string(options.uneven_inputs),
          .optimizer = optimizer_text(options),
          .lr = options.lr,
          .gamma = options.gamma,
          .compress = to_string(options.compression),
          .ignore_parameters = sorted_list(options.ignore_parameters),
          .seed = options.seed,
          .num_images = data.train.count,
          .image_checksum = checksum(data.train),
          .local_steps = local_steps_text(options),
          .batch_norm = options.batch_norm ? 1 : 0};
}

std::string first_difference(const RunIdentity& there, const RunIdentity& here) {
  std::string found;
  const auto compare = [&](const char* what, auto field) {
    if (!found.empty() || there.*field == here.*field) return;
    const auto shown = [](const std::string& text) {
      return text.empty() ? "none" : one_line(text);
    };
    found = concat(what, " is ", shown(field_text(there.*field)), " there, ",
                   shown(field_text(here.*field)), " here");
  };
  compare("--batch-size", &RunIdentity::batch_size);
  compare("--accumulate", &RunIdentity::accumulate);
  compare("--uneven-inputs", &RunIdentity::uneven_inputs);
  if (found.empty() && there.optimizer != here.optimizer) {
    found = optimizer_difference(there.optimizer, here.optimizer);
  }
  compare("--lr", &RunIdentity::lr);
  compare("--gamma", &RunIdentity::gamma);
  compare("--compress", &RunIdentity::compress);
  compare("--ignore-parameters", &RunIdentity::ignore_parameters);
  const bool both_know = there.batch_norm >= 0 && here.batch_norm >= 0;
  if (found.empty() && both_know && there.batch_norm != here.batch_norm) {
    found = there.batch_norm ? "--batch-norm is set there, not here"
                             : "--batch-norm is set here, not there";
  }
  compare("what makes ranks step alone", &RunIdentity::local_steps);
  compare("--seed", &RunIdentity::seed);
  compare("the number of training images", &RunIdentity::num_images);
  if (found.empty() && there.image_checksum != here.image_checksum) {
    found = "the training images are others";
  }
  return found;
}

Metadata to_metadata(const TrainingState& state) {
  Metadata metadata{{kVersionKey, std::string(kVersion)}};
  const auto keep = [&](const char* key, const auto& value) { metadata[key] = field_text(value); };
  each_field(state, keep, keep);
  return metadata;
}

TrainingState from_metadata(const Metadata& metadata) {
  const auto text = [&](const std::string& key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found != metadata.end()) return found->second;
    throw Error(ErrorCode::kProtocol, "it has no " + key);
  };
  if (text(kVersionKey) != kVersion) {
    throw Error(ErrorCode::kProtocol,
                concat("it is of version ", one_line(text(kVersionKey).substr(0, 40)),
                       " of this format, not ", kVersion));
  }
  TrainingState state;
  const auto read = [&](const char* key, auto& value) { read_field(text(key), key, value); };
  const auto read_if_there = [&](const char* key, auto& value) {
    if (metadata.contains(key)) read(key, value);
  };
  each_field(state, read, read_if_there);
  if (state.samples < 0) throw Error(ErrorCode::kProtocol, "its samples are negative");
  return state;
}

std::uint64_t step_seed(std::uint64_t seed, int rank, std::uint64_t step) {
  std::uint64_t mixed = 0;
  for (const std::uint64_t part : {seed, static_cast<std::uint64_t>(rank), step}) {
    mixed = (mixed + part + 1) * 0x9e3779b97f4a7c15;  // splitmix64's constant
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
  }
  return mixed;
}

}  // namespace ddprun::train
