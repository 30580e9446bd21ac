// SPDX-License-Identifier: Apache-2.0
#include "launcher/help_text.h"

#include <CLI/CLI.hpp>

namespace ddprun::launcher {
namespace {

class OneSpellingFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool /*is_positional*/) const override {
    std::string name = option->get_snames().empty() ? "" : "-" + option->get_snames()[0] + ", ";
    return name + "--" + option->get_lnames()[0];
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_items_expected_max() == 0 ? "" : " " + option->get_type_name();
  }
  // kHelpBegin has it.
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "";
  }
};

}  // namespace

const char kHelpBegin[] =
    R"(ddprun: starts, connects and watches the workers of a distributed training job

Examples:
  ddprun --standalone --nproc_per_node=2 train          two workers on this machine
  ddprun --nproc_per_node=gpu train.py --lr 0.1         one worker per GPU; flags after train.py are its own
  ddprun --nnodes=2 --rdzv-endpoint=node0:29400 --nproc_per_node=4 train
                                                        on each of two machines; node0 is one of them
  ddprun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500 train
                                                        the same with fixed ranks
  srun -N2 --ntasks-per-node=1 ddprun --nnodes=2 train  under Slurm: finds its endpoint by itself

Usage: ddprun [flags] PROGRAM [args…]

PROGRAM is an executable, a Python script, or with -m a Python module.
Each flag can be spelled with - or _ between its words.
)";

const char kHelpEnd[] =
    "Exit status: 0; 2 usage; 69 rendezvous unreachable; 75 worth retrying; otherwise the first\n"
    "failing worker's own, or 128 + signal (docs/exit-codes.md).\n";

std::shared_ptr<CLI::FormatterBase> one_spelling_formatter() {
  return std::make_shared<OneSpellingFormatter>();
}

}  // namespace ddprun::launcher
