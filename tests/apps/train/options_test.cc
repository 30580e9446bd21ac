// SPDX-License-Identifier: Apache-2.0
#include "apps/train/options.h"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "common/exit_codes.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::train;

namespace {

// The message that `line` gives after "train".
std::string refusal(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words{"train"};
  for (std::string word; text >> word;) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::ostringstream printed;
  std::streambuf* const before = std::cerr.rdbuf(printed.rdbuf());
  int exit_status = 0;
  const auto options = parse_options(static_cast<int>(words.size()), argv.data(), exit_status);
  std::cerr.rdbuf(before);
  CHECK_FALSE(options);
  CHECK(exit_status == static_cast<int>(ExitCode::kUsage));
  return printed.str();
}

struct Wrong {
  const char* line;
  const char* said = nullptr;  // default: the message begins with the first flag
};

const Wrong kWrong[] = {
    {"--epochs=0"},
    {"--backend=smoke"},
    {"--nonsense"},
    {"--lr=-1"},
    {"--lr=0"},
    {"--lr=nan"},
    {"--gamma=inf"},
    {"--seed=-1"},
    {"--seed=18446744073709551616"},
    {"--seed=x"},
    {"--data= --json=x"},
    {"--accumulate=0"},
    {"--uneven-inputs=smooth"},
    {"--find-unused-parameters --static-graph"},
    {"--operation-timeout=0"},
    {"--operation-timeout=nan"},
    // Optimisers and mixed precision.
    {"--optimizer=lion"},
    {"--momentum=0.5"},
    {"--weight-decay=1"},
    {"--schedule=cosine --gamma=0.5", "--gamma"},
    {"--warmup-steps=-1"},
    {"--clip-norm=-1"},
    {"--clip-norm=nan"},
    {"--amp=fp8"},
    {"--amp=fp16 --uneven-inputs=join"},
    // Ways of the gradients.
    {"--compress="},
    {"--compress=zip"},
    {"--compress=topk:2"},
    {"--compress=topk:0.1:x"},
    {"--compress=powersgd:0"},
    // Parameters that each rank has for itself.
    {"--ignore-parameters="},
    {"--ignore-parameters=fc1.bias --clip-norm=1", "--clip-norm: not with --ignore"},
    {"--ignore-parameters=fc1.bias --checkpoint-dir=x", "--checkpoint-sharded"},
    {"--no-broadcast-buffers --checkpoint-dir=x", "--checkpoint-sharded"},
    // Checkpoints.
    {"--checkpoint-every=3", "--checkpoint-dir"},
    {"--checkpoint-dir=x --checkpoint-every=-1", "--checkpoint-every"},
    {"--checkpoint-dir=x --checkpoint-every=often", "--checkpoint-every"},
    {"--checkpoint-dir="},
    {"--checkpoint-dir"},
    // Loaders.
    {"--loader-threads=-1"},
    {"--loader-threads=many"},
    {"--loader-delay-ms=-1"},
    // ZeRO.
    {"--zero=1", "--zero: is not for adadelta"},
    {"--zero=3 --optimizer=sgd"},
    {"--zero=1 --optimizer=sgd --compress=fp16", "--zero: not with --compress"},
    {"--zero=1 --optimizer=sgd --find-unused-parameters", "not with --find-unused-parameters"},
    {"--zero=1 --optimizer=sgd --static-graph", "not with --static-graph"},
    {"--zero=1 --optimizer=sgd --ignore-parameters=fc1.bias", "not with --ignore-parameters"},
    {"--zero=1 --optimizer=sgd --uneven-inputs=join", "not with --uneven-inputs=join"},
    // Ranks that step by themselves.
    {"--sync-every=0"},
    {"--sync-every=8 --uneven-inputs=join", "--sync-every: not with --uneven-inputs=join"},
    {"--sync-every=8 --compress=bf16", "--sync-every: not with --compress"},
    {"--sync-every=8 --static-graph", "--sync-every: not with --static-graph"},
    {"--sync-every=8 --amp=fp16", "--sync-every: not with --amp=fp16"},
    {"--sync-every=8 --checkpoint-dir=x --checkpoint-every=12",
     "--checkpoint-every: 12 is no multiple of --sync-every=8"},
    {"--sync-every=8 --sync-after=3", "--sync-after: 3 is no multiple of --sync-every=8"},
    {"--sync-after=8", "--sync-after: needs --sync-every of 2 or more"},
    {"--mode=async --sync-every=8", "--mode=async: not with --sync-every"},
    {"--mode=async --compress=int8", "--mode=async: not with --compress"},
    {"--staleness=3", "--staleness: is for --mode=async"},
    {"--replicas=3", "--replicas: is for --mode=dp"},
    {"--mode=async --checkpoint-dir=x --checkpoint-every=8",
     "--checkpoint-every: not with --mode=async"},
    // Layouts.
    {"--parallel=zz2", "no axis zz; there are pp, dp, tp"},
    {"--parallel=tp2 --clip-norm=1", "--parallel: not with --clip-norm"},
    {"--parallel=tp2 --batch-norm", "--parallel: not with --batch-norm"},
    {"--parallel=tp2 --pipeline=gpipe", "--pipeline: needs a --parallel that has stages"},
};

}  // namespace

TEST_CASE("Options of train: wrong usage is one line that names the flag, and 2") {
  for (const Wrong& wrong : kWrong) {
    INFO(wrong.line);
    const std::string said = refusal(wrong.line);
    const std::string line = wrong.line;
    CHECK_THAT(said,
               test::Contains(wrong.said ? wrong.said : line.substr(0, line.find_first_of("= "))));
    CHECK(said.starts_with("train: "));
    CHECK(said.find('\n') + 1 == said.size());
    CHECK(said.size() < 300);
  }
}

TEST_CASE("Options of train: all unknown flags are told, a line for each") {
  const std::string said = refusal("--epochz=2 --zzz");
  CHECK_THAT(said,
             test::Contains("train: unknown flag --epochz (did you mean --epochs?) (train ") &&
                 test::Contains("\ntrain: unknown flag --zzz (train "));
}
