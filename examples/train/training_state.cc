// SPDX-License-Identifier: Apache-2.0
#include "examples/train/training_state.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <system_error>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::train {
namespace {

constexpr std::string_view kVersion = "3";
constexpr const char* kVersionKey = "ddprun_train";
constexpr const char* kOrderKey = "gradient_order";
constexpr std::size_t kNumbersPerEpoch = 6;

template <typename Number>
std::string number_text(Number number) {
  char text[64];  // the shortest that reads back as the same number
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

template <typename Number>
Number to_number(std::string_view text, const std::string& key) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  throw Error(ErrorCode::kProtocol,
              concat("its ", key, " is no such number: \"", one_line(text.substr(0, 40)), "\""));
}

class Reader {
 public:
  explicit Reader(const Metadata& metadata) : metadata_(metadata) {}
  const std::string& text(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found != metadata_.end()) return found->second;
    throw Error(ErrorCode::kProtocol, "it has no " + key);
  }
  std::string text_or_empty(const std::string& key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? std::string() : found->second;
  }
  template <typename Number>
  void read(const std::string& key, Number& number) const {
    number = to_number<Number>(text(key), key);
  }
  template <typename Number>
  void read_if_there(const std::string& key, Number& number) const {
    if (metadata_.contains(key)) read(key, number);
  }

 private:
  const Metadata& metadata_;
};

// One line each.
std::string epochs_to_text(const std::vector<EpochResult>& epochs) {
  std::string text;
  for (const EpochResult& each : epochs) {
    text += number_text(each.epoch) + ' ' + number_text(each.train_loss) + ' ' +
            number_text(each.test_loss) + ' ' + number_text(each.test_accuracy) + ' ' +
            number_text(each.seconds) + ' ' + number_text(each.samples_per_second) + '\n';
  }
  return text;
}

std::vector<EpochResult> epochs_from_text(std::string_view text) {
  constexpr const char* kKey = "epochs";
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of(" \n");
    words.push_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  if (words.size() % kNumbersPerEpoch != 0) {
    throw Error(ErrorCode::kProtocol, "its epochs are no list of six numbers each");
  }
  std::vector<EpochResult> epochs;
  for (std::size_t i = 0; i < words.size(); i += kNumbersPerEpoch) {
    EpochResult result;
    result.epoch = to_number<int>(words[i], kKey);
    result.train_loss = to_number<double>(words[i + 1], kKey);
    result.test_loss = to_number<double>(words[i + 2], kKey);
    result.test_accuracy = to_number<double>(words[i + 3], kKey);
    result.seconds = to_number<double>(words[i + 4], kKey);
    result.samples_per_second = to_number<double>(words[i + 5], kKey);
    epochs.push_back(result);
  }
  return epochs;
}

// A cosine's length is the whole training's.
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

// Ranks that are threads train as ranks that are processes do.
std::string local_steps_text(const Options& options) {
  if (options.mode == ModeChoice::kAsync)
    return "--mode=async --staleness=" + number_text(options.staleness);
  if (options.sync_every <= 1) return "";
  return concat("--sync-every=", options.sync_every, " --sync-after=", options.sync_after,
                options.sync_optimizer ? " --sync-optimizer" : "");
}

std::string comma_list(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ",") + name;
  return list;
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) names.push_back(name);
  return names;
}

std::string sorted_list(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return comma_list(names);
}

std::string compression_from_text(std::string_view text) {
  try {
    return to_string(parse_compression(text));
  } catch (const Error& error) {
    throw Error(ErrorCode::kProtocol, concat("its compress: ", error.what()));
  }
}

// Of optimizer_text(): its first word is --optimizer's, the others are flags with their values.
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
  const auto differ = [](const char* what, const auto& a, const auto& b) {
    return concat(what, " is ", number_text(a), " there, ", number_text(b), " here");
  };
  if (there.batch_size != here.batch_size) {
    return differ("--batch-size", there.batch_size, here.batch_size);
  }
  if (there.accumulate != here.accumulate) {
    return differ("--accumulate", there.accumulate, here.accumulate);
  }
  if (there.uneven_inputs != here.uneven_inputs) {
    return concat("--uneven-inputs is ", one_line(there.uneven_inputs), " there, ",
                  here.uneven_inputs, " here");
  }
  if (there.optimizer != here.optimizer) {
    return optimizer_difference(there.optimizer, here.optimizer);
  }
  if (there.lr != here.lr) return differ("--lr", there.lr, here.lr);
  if (there.gamma != here.gamma) return differ("--gamma", there.gamma, here.gamma);
  if (there.compress != here.compress) {
    return concat("--compress is ", there.compress, " there, ", here.compress, " here");
  }
  if (there.ignore_parameters != here.ignore_parameters) {
    const auto or_none = [](const std::string& list) { return list.empty() ? "none" : list; };
    return concat("--ignore-parameters is ", one_line(or_none(there.ignore_parameters)), " there, ",
                  or_none(here.ignore_parameters), " here");
  }
  if (there.batch_norm >= 0 && here.batch_norm >= 0 && there.batch_norm != here.batch_norm) {
    return there.batch_norm ? "--batch-norm is set there, not here"
                            : "--batch-norm is set here, not there";
  }
  if (there.local_steps != here.local_steps) {
    const auto or_none = [](const std::string& flags) { return flags.empty() ? "none" : flags; };
    return concat("what makes ranks step alone is ", one_line(or_none(there.local_steps)),
                  " there, ", or_none(here.local_steps), " here");
  }
  if (there.seed != here.seed) return differ("--seed", there.seed, here.seed);
  if (there.num_images != here.num_images) {
    return differ("the number of training images", there.num_images, here.num_images);
  }
  if (there.image_checksum != here.image_checksum) return "the training images are others";
  return "";
}

Metadata to_metadata(const TrainingState& state) {
  return {{kVersionKey, std::string(kVersion)},
          {"batch_size", number_text(state.run.batch_size)},
          {"accumulate", number_text(state.run.accumulate)},
          {"uneven_inputs", state.run.uneven_inputs},
          {"optimizer", state.run.optimizer},
          {"lr", number_text(state.run.lr)},
          {"gamma", number_text(state.run.gamma)},
          {"compress", state.run.compress},
          {"ignore_parameters", state.run.ignore_parameters},
          {"seed", number_text(state.run.seed)},
          {"num_images", number_text(state.run.num_images)},
          {"image_checksum", number_text(state.run.image_checksum)},
          {"local_steps", state.run.local_steps},
          {"batch_norm", number_text(state.run.batch_norm)},
          {"num_threads", number_text(state.num_threads)},
          {"step", number_text(state.step)},
          {"epochs", epochs_to_text(state.epochs)},
          {"samples", number_text(state.samples)},
          {"loss_sum", number_text(state.loss_sum)},
          {"seconds", number_text(state.seconds)},
          {kOrderKey, comma_list(state.gradient_order)}};
}

TrainingState from_metadata(const Metadata& metadata) {
  const Reader reader(metadata);
  if (reader.text(kVersionKey) != kVersion) {
    throw Error(ErrorCode::kProtocol,
                concat("it is of version ", one_line(reader.text(kVersionKey).substr(0, 40)),
                       " of this format, not ", kVersion));
  }
  TrainingState state;
  reader.read("batch_size", state.run.batch_size);
  reader.read("accumulate", state.run.accumulate);
  state.run.uneven_inputs = reader.text("uneven_inputs");
  state.run.optimizer = reader.text("optimizer");
  reader.read("lr", state.run.lr);
  reader.read("gamma", state.run.gamma);
  state.run.compress = compression_from_text(reader.text("compress"));
  state.run.ignore_parameters = reader.text("ignore_parameters");
  reader.read("seed", state.run.seed);
  reader.read("num_images", state.run.num_images);
  reader.read("image_checksum", state.run.image_checksum);
  state.run.local_steps = reader.text_or_empty("local_steps");
  reader.read_if_there("batch_norm", state.run.batch_norm);
  reader.read_if_there("num_threads", state.num_threads);
  reader.read("step", state.step);
  state.epochs = epochs_from_text(reader.text("epochs"));
  reader.read("samples", state.samples);
  reader.read("loss_sum", state.loss_sum);
  reader.read("seconds", state.seconds);
  state.gradient_order = names_in(reader.text_or_empty(kOrderKey));
  if (state.samples < 0) throw Error(ErrorCode::kProtocol, "its samples are negative");
  return state;
}

std::uint64_t step_seed(std::uint64_t seed, int rank, std::uint64_t step) {
  std::uint64_t mixed = 0;
  for (const std::uint64_t part : {seed, static_cast<std::uint64_t>(rank), step}) {
    mixed = (mixed + part + 1) * 0x9e3779b97f4a7c15;  // splitmix64's
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
  }
  return mixed;
}

}  // namespace ddprun::train
