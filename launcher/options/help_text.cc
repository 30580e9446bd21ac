// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/help_text.h"

#include <algorithm>

#include "launcher/options/option_table.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kHelpColumn = 36;
constexpr std::size_t kWidth = 100;

constexpr char kTitle[] =
    "ddprun: starts, connects and watches the workers of a distributed training job\n";

constexpr char kExamples[] =
    R"(  ddprun --standalone --nproc_per_node=2 train          two workers on this machine
  ddprun --nproc_per_node=gpu train.py --lr 0.1         one worker per GPU; flags after train.py are its own
  ddprun --nnodes=2 --rdzv-endpoint=node0:29400 --nproc_per_node=4 train
                                                        on each of two machines; node0 is one of them
  ddprun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500 train
                                                        the same with fixed ranks
  srun -N2 --ntasks-per-node=1 ddprun --nnodes=2 train  under Slurm: finds its endpoint by itself
)";

constexpr char kUsage[] =
    R"(Usage: ddprun [flags] PROGRAM [args…]

PROGRAM is an executable, a Python script, or with -m a Python module.
Each flag can be spelled with - or _ between its words; one that isn't given is taken from
DDPRUN_<FLAG>, PET_<FLAG> or a configuration file (--show-config says which).
)";

constexpr char kFooter[] =
    R"(
Exit status: 0; 2 usage; 69 rendezvous unreachable; 75 worth retrying; otherwise the first
failing worker's own, or 128 + signal (docs/exit-codes.md).
)";

std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

// `text` from column kHelpColumn on, in lines of at most kWidth columns.
std::string wrapped(std::string_view text) {
  std::string lines;
  std::size_t column = kHelpColumn;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (column > kHelpColumn && column + 1 + columns(word) > kWidth) {
      lines += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      lines += " ";
      ++column;
    }
    lines += word;
    column += columns(word);
  }
  return lines;
}

std::string entry(const Option& option) {
  std::string line = "  ";
  if (option.letter != 0) line += std::string("-") + option.letter + ", ";
  line += "--" + option.name;
  if (!option.is_switch()) line += " " + option.value;
  const std::size_t width = columns(line);
  line += width + 1 < kHelpColumn ? std::string(kHelpColumn - width, ' ')
                                  : "\n" + std::string(kHelpColumn, ' ');
  const std::string fallback = option.fallback.empty() ? "" : " (default " + option.fallback + ")";
  return line + wrapped(option.help + fallback) + "\n";
}

}  // namespace

std::string help_text() {
  std::string text = std::string(kTitle) + "\nExamples:\n" + kExamples + "\n" + kUsage;
  std::string group;
  for (const Option& option : option_table()) {
    if (option.group != group) text += "\n" + option.group + ":\n";
    group = option.group;
    text += entry(option);
  }
  return text + kFooter;
}

std::string help_examples() { return kExamples; }

std::string version_text() {
  return "ddprun " DDPRUN_VERSION "\nbuilt with " DDPRUN_BUILT_WITH "\n";
}

}  // namespace ddprun::launcher
