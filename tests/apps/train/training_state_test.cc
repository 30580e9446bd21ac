// SPDX-License-Identifier: Apache-2.0
#include "apps/train/training_state.h"

#include <limits>
#include <set>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace ddprun::train;
using test::contains;
using test::error_of;

namespace {

TrainingState some_state() {
  TrainingState state;
  state.run = {.batch_size = 64,
               .accumulate = 2,
               .uneven_inputs = "join",
               .optimizer = "sgd --momentum=0.9",
               .lr = 0.1 + 0.2,
               .gamma = 0.7,
               .compress = "bf16",
               .ignore_parameters = "fc1.bias,fc2.bias",
               .seed = std::numeric_limits<std::uint64_t>::max(),
               .num_images = 1500,
               .image_checksum = 0xffffffff,
               .local_steps = "--sync-every=8",
               .batch_norm = 1};
  state.step = 60;
  state.epochs = {{1, 1.0 / 3, 2.0 / 3, 0.75, 1e-300, 5e+300}, {2, 1e300 * 10, -0.0, 1, 0, 1}};
  state.samples = 768;
  state.loss_sum = 123.456789012345678;
  state.seconds = 0.1;
  state.gradient_order = {"fc2.bias", "fc2.weight", "conv1.weight"};
  state.num_threads = 4;
  return state;
}

}  // namespace

TEST_CASE("training state: every number comes back bit for bit") {
  CHECK(from_metadata(to_metadata(some_state())) == some_state());
  CHECK(from_metadata(to_metadata({})) == TrainingState{});
}

TEST_CASE("training state: a field that is missing or no number is named") {
  for (const auto& [key, value] : to_metadata(some_state())) {
    Metadata metadata = to_metadata(some_state());
    metadata.erase(key);
    if (key == "gradient_order") {  // older checkpoints don't have it
      CHECK(from_metadata(metadata).gradient_order.empty());
      continue;
    }
    if (key == "local_steps") {  // older checkpoints don't have it; it may be any text
      CHECK(from_metadata(metadata).run.local_steps.empty());
      continue;
    }
    if (key == "batch_norm" || key == "num_threads") {  // older checkpoints don't have them
      const TrainingState earlier = from_metadata(metadata);
      CHECK((key == "batch_norm" ? earlier.run.batch_norm == -1 : earlier.num_threads == 0));
      CHECK(first_difference(earlier.run, some_state().run).empty());
    } else {
      CHECK(error_of([&] { from_metadata(metadata); }).what() == "it has no " + key);
    }
    if (key == "optimizer" || key == "uneven_inputs" || key == "ignore_parameters")
      continue;  // these may be any text
    metadata[key] = "12\nx";
    const Error error = error_of([&] { from_metadata(metadata); });
    CHECK(error.code() == ErrorCode::kProtocol);
    CHECK(contains(error.what(), key == "ddprun_train" ? "version 12\\nx" : key));
  }
}

TEST_CASE("training state: numbers that can't be are refused") {
  const auto with = [](const std::string& key, const std::string& value) {
    Metadata metadata = to_metadata(some_state());
    metadata[key] = value;
    return std::string(error_of([&] { from_metadata(metadata); }).what());
  };
  CHECK(contains(with("samples", "-1"), "negative"));
  CHECK(contains(with("step", "-1"), "step"));
  CHECK(contains(with("step", "99999999999999999999999"), "step"));
  CHECK(contains(with("epochs", "1 2 3\n"), "six numbers"));
  CHECK(contains(with("epochs", "1 2 3 4 5 six\n"), "epochs"));
}

TEST_CASE("training state: the first thing that must not change and did is named by its flag") {
  const RunIdentity there = some_state().run;
  CHECK(first_difference(there, there).empty());
  RunIdentity here = there;
  here.image_checksum = 1;
  CHECK(first_difference(there, here) == "the training images are others");
  here.num_images = 60'000;
  CHECK(first_difference(there, here) == "the number of training images is 1500 there, 60000 here");
  here.seed = 2;
  CHECK(contains(first_difference(there, here), "--seed is 18446744073709551615 there, 2 here"));
  here.local_steps = "";
  CHECK(first_difference(there, here) ==
        "what makes ranks step alone is --sync-every=8 there, none here");
  here.batch_norm = 0;
  CHECK(first_difference(there, here) == "--batch-norm is set there, not here");
  CHECK(first_difference(here, there) != "");
  here.ignore_parameters = "";
  CHECK(first_difference(there, here) ==
        "--ignore-parameters is fc1.bias,fc2.bias there, none here");
  here.compress = "none";
  CHECK(first_difference(there, here) == "--compress is bf16 there, none here");
  here.gamma = 0.9;
  CHECK(first_difference(there, here) == "--gamma is 0.7 there, 0.9 here");
  here.lr = 0.3;
  CHECK(contains(first_difference(there, here), "--lr is 0.30000000000000004 there, 0.3 here"));
  here.optimizer = "adam";
  CHECK(first_difference(there, here) == "--optimizer is sgd there, adam here");
  here.optimizer = "sgd --momentum=0.5";
  CHECK(first_difference(there, here) == "--momentum is 0.9 there, 0.5 here");
  here.optimizer = "sgd --momentum=0.9 --more=1";
  CHECK(first_difference(there, here) ==
        "--optimizer is sgd --momentum=0.9 there, sgd --momentum=0.9 --more=1 here");
  here.batch_size = 32;
  CHECK(first_difference(there, here) == "--batch-size is 64 there, 32 here");
  here = there;
  here.accumulate = 4;
  CHECK(first_difference(there, here) == "--accumulate is 2 there, 4 here");
  here = there;
  here.uneven_inputs = "pad";
  CHECK(first_difference(there, here) == "--uneven-inputs is join there, pad here");
}

TEST_CASE("training state: each step on each rank has random numbers of its own, always the same") {
  CHECK(step_seed(1, 2, 3) == step_seed(1, 2, 3));
  std::set<std::uint32_t> seeds;  // LibTorch's generator on the CPU takes the low half of a seed
  for (const std::uint64_t seed : {0, 1, 2}) {
    for (int rank = 0; rank < 8; ++rank) {
      for (std::uint64_t step = 0; step < 100; ++step) {
        seeds.insert(static_cast<std::uint32_t>(step_seed(seed, rank, step)));
      }
    }
  }
  CHECK(seeds.size() == 2'400);
}
