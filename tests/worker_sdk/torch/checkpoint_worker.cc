// SPDX-License-Identifier: Apache-2.0
// One rank of checkpoint_test.py:
//   checkpoint_worker MODE DIRECTORY    checks; exit status 0 where they hold
#include <ATen/ATen.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/torch/checkpoint.h"
#include "worker_sdk/torch/rng_state.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace checkpoint_worker {
namespace {

template <typename Call>
std::string error_of(Call call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    expect(error.code() == code, std::string("the error's code: ") + error.what());
    return error.what();
  }
  return "";
}

const at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                  at::kInt,   at::kShort,  at::kChar, at::kByte,     at::kBool};

// One tensor of each dtype with 0, 1, 2, … (modulo 2) plus `first`. One of them is not contiguous,
// one has no dimension, and one has no element.
std::vector<NamedTensor> make_tensors(double first) {
  std::vector<NamedTensor> tensors;
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor values = at::arange(6, at::TensorOptions().dtype(at::kDouble)).add_(first);
    tensors.push_back({std::string("of.") + c10::toString(dtype), values.view({2, 3}).to(dtype)});
  }
  tensors.push_back({"transposed", at::arange(12).view({3, 4}).to(at::kFloat).add_(first).t()});
  tensors.push_back({"scalar", at::full({}, first, at::TensorOptions().dtype(at::kFloat))});
  tensors.push_back({"empty", at::empty({0, 3}, at::TensorOptions().dtype(at::kFloat))});
  return tensors;
}

bool are_equal(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || !at::equal(a[i].tensor, b[i].tensor)) return false;
  }
  return a.size() == b.size();
}

void fill(const std::vector<NamedTensor>& tensors, double value) {
  for (const NamedTensor& each : tensors) each.tensor.fill_(value);
}

// A checkpoint has the values at the time of save(), on every rank, whatever came later.
void run_roundtrip(Communicator& communicator, const std::string& directory) {
  for (const bool async : {true, false}) {
    const CheckpointOptions options{
        .directory = directory + (async ? "/async" : "/sync"), .num_kept = 3, .async = async};
    Checkpoint checkpoint(options, communicator, c10::kCPU);
    std::vector<NamedTensor> tensors = make_tensors(0);
    expect(!checkpoint.load(tensors), "an empty directory has no checkpoint");
    expect(are_equal(tensors, make_tensors(0)), "and nothing was changed");
    for (const int step : {1, 2, 3}) {
      tensors = make_tensors(step);
      checkpoint.save(static_cast<std::uint64_t>(step), {{"note", std::to_string(step)}}, tensors);
      fill(tensors, 77);  // at once, because the writer has copies
    }
    checkpoint.save(3, {{"note", "another of the same step: not written"}}, tensors);
    checkpoint.finish();
    // Each rank has other values before it loads.
    fill(tensors, communicator.rank());
    Checkpoint again(options, communicator, c10::kCPU);
    const auto saved = again.load(tensors);
    expect(saved && saved->step == 3, "the newest step");
    expect(saved->metadata == Metadata{{"note", "3"}}, "its metadata, on each rank");
    expect(are_equal(tensors, make_tensors(3)), "its tensors, on each rank");
    expect((communicator.rank() == 0) == !again.path().empty(), "rank 0 alone knows its path");
    if (communicator.rank() != 0) continue;
    std::size_t num_files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options.directory)) {
      expect(entry.path().extension() == ".safetensors", "no temporary file is left");
      ++num_files;
    }
    expect(num_files == 3, "three are kept");
  }
}

// Every rank gets the same error, and no tensor is changed.
void run_refused(Communicator& communicator, const std::string& directory) {
  const CheckpointOptions options{.directory = directory};
  Checkpoint checkpoint(options, communicator, c10::kCPU);
  std::vector<NamedTensor> tensors = make_tensors(5);
  checkpoint.save(5, {{"kind", "digits"}}, tensors);
  fill(tensors, 9);
  const auto refused = [&](const std::vector<NamedTensor>& list, const std::string& why,
                           const Checkpoint::Accept& accept = {}) {
    const std::string error =
        error_of([&] { checkpoint.load(list, accept); }, ErrorCode::kInvalidArgument);
    expect_contains(error, "can't go on from " + directory + "/step-000000000005.safetensors: ");
    expect_contains(error, why + "; give what it was trained with, or another checkpoint");
    for (const NamedTensor& each : tensors) {
      expect(at::all(each.tensor == at::full_like(each.tensor, 9)).item<bool>(), "unchanged");
    }
  };
  std::vector<NamedTensor> others = tensors;
  others.pop_back();
  refused(others, "it is of another model: empty is none of this model's");
  others.push_back({"full", at::zeros({2})});
  refused(others, "it is of another model: it has no full");
  others = tensors;
  others[0].tensor = at::zeros({3, 2});
  refused(others, "of.Float is F32 [2, 3] there, F32 [3, 2] here");
  others[0].tensor = at::zeros({2, 3}, at::TensorOptions().dtype(at::kHalf));
  refused(others, "of.Float is F32 [2, 3] there, F16 [2, 3] here");
  refused(tensors, "kind is digits there", [](std::uint64_t, const Metadata& metadata) {
    return "kind is " + metadata.at("kind") + " there";
  });
  refused(tensors, "it is of no known version", [](std::uint64_t, const Metadata&) -> std::string {
    throw Error(ErrorCode::kProtocol, "it is of no known version");
  });
  expect(checkpoint.load(tensors).has_value(), "what isn't refused is loaded");
  expect(are_equal(tensors, make_tensors(5)), "as it was");
}

// The writer's thread can't write a checkpoint. The next call says so on every rank, and the next
// save is well.
void run_error(Communicator& communicator, const std::string& directory) {
  Checkpoint checkpoint({.directory = directory}, communicator, c10::kCPU);
  const std::vector<NamedTensor> tensors = make_tensors(1);
  const std::string in_the_way = directory + "/step-000000000002.safetensors";
  if (communicator.rank() == 0) std::filesystem::create_directories(in_the_way + "/x");
  communicator.barrier();
  const std::string expected = "can't write the checkpoint " + in_the_way + ": ";
  checkpoint.save(2, {}, tensors);
  expect_contains(error_of([&] { checkpoint.finish(); }, ErrorCode::kSystem), expected);
  checkpoint.finish();  // the error comes only once
  checkpoint.save(2, {}, tensors);
  expect_contains(error_of([&] { checkpoint.finish(); }, ErrorCode::kSystem), expected);
  checkpoint.save(1, {}, tensors);
  checkpoint.save(2, {}, tensors);
  expect_contains(error_of([&] { checkpoint.save(3, {}, tensors); }, ErrorCode::kSystem), expected);
  checkpoint.save(3, {}, tensors);
  checkpoint.finish();
  std::vector<NamedTensor> read = make_tensors(0);
  expect(checkpoint.load(read)->step == 3, "a save after the error");
  expect(are_equal(read, tensors), "whole");
  const std::string unsupported = error_of(
      [&] {
        checkpoint.save(4, {}, {{"c", at::zeros({1}, at::kComplexDouble)}});
      },
      ErrorCode::kUnsupported);
  expect_contains(unsupported, "can't hold tensors of dtype ComplexDouble");
}

// A rank that loads alone hears that all ranks do.
void run_alone(Communicator& communicator, const std::string& directory) {
  const auto pair = communicator.split({0, 1}, {.name = "pair"});
  Checkpoint checkpoint({.directory = directory}, *pair, c10::kCPU);
  if (communicator.rank() == 0) {
    expect_contains(
        error_of([&] { checkpoint.load(make_tensors(0)); }, ErrorCode::kProtocol),
        "; here a checkpoint was saved or loaded: all ranks call its save() and load()");
  } else {
    error_of([&] { pair->barrier(); }, ErrorCode::kProtocol);
  }
}

// A file that can't be read again would end the training, once older files are removed. Every rank
// gets the reason at once, and the checkpoint before is still there.
void run_unsavable(Communicator& communicator, const std::string& directory) {
  for (const bool sharded : {false, true}) {
    const std::string path = directory + (sharded ? "/sharded" : "/plain");
    Checkpoint checkpoint({.directory = path, .num_kept = 1, .sharded = sharded}, communicator,
                          c10::kCPU);
    const std::vector<NamedTensor> good{{"a", at::ones({2})}, {"b", at::ones({2})}};
    checkpoint.save(1, {}, good);
    const auto refused = [&](const NamedTensor& more, const Metadata& metadata,
                             const std::string& why) {
      std::vector<NamedTensor> list = good;
      if (!more.name.empty()) list.push_back(more);
      expect_contains(
          error_of([&] { checkpoint.save(2, metadata, list); }, ErrorCode::kInvalidArgument),
          "a checkpoint: " + why);
    };
    refused({"a", at::ones({2})}, {}, "two tensors are named a");
    refused({"\xff", at::ones({2})}, {}, "the tensor name ");
    refused({"none", at::Tensor()}, {}, "the tensor none is undefined");
    refused({"s", at::eye(3).to_sparse()}, {}, "the tensor s is sparse: give a dense one");
    refused({"own:c", at::ones({2})}, {}, "the name own:c");
    refused({}, {{"crc32", "1"}}, "the key crc32 of the metadata is the format's own");
    refused({}, {{"shards", "1"}}, "the key shards of the metadata is its own");
    refused({}, {{"note", "\xff"}}, "the metadata of key \"note\" are no UTF-8");
    if (sharded) {
      const std::vector<NamedTensor> own{{"x", at::ones({1})}, {"x", at::ones({1})}};
      const std::vector<NamedTensor> none;
      const bool mine = communicator.rank() == communicator.size() - 1;
      const auto save = [&] { checkpoint.save(2, {}, good, mine ? own : none); };
      expect_contains(error_of(save, ErrorCode::kInvalidArgument), "two tensors are named own:x");
    }
    checkpoint.finish();
    const std::optional<SavedState> saved = checkpoint.load(good);
    expect(saved && saved->step == 1, "the one before is there");
  }
}

// Tensors of this rank alone: one with another size on each rank, and the state of its random
// generator.
std::vector<NamedTensor> make_own(const Communicator& communicator, double value) {
  return {{"residual", at::full({communicator.rank() + 1}, value + communicator.rank())},
          {"rng", rng_state(c10::kCPU)}};
}

std::size_t num_files(const std::string& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory),
                                                std::filesystem::directory_iterator()));
}

// Every rank writes a part. Loading gives back the whole, and each rank's own tensors.
void run_sharded(Communicator& communicator, const std::string& directory) {
  const auto size = static_cast<std::size_t>(communicator.size());
  for (const bool async : {true, false}) {
    const CheckpointOptions options{
        .directory = directory + (async ? "/async" : "/sync"), .async = async, .sharded = true};
    Checkpoint checkpoint(options, communicator, c10::kCPU);
    std::vector<NamedTensor> own;
    at::Tensor drawn;
    for (const int step : {1, 2, 3}) {
      at::rand({communicator.rank() + 1});  // makes the generators differ
      std::vector<NamedTensor> tensors = make_tensors(step);
      own = make_own(communicator, step);
      checkpoint.save(static_cast<std::uint64_t>(step),
                      {{"note", "of rank " + std::to_string(communicator.rank())}}, tensors, own);
      drawn = at::rand({5});
      fill(tensors, 77);  // at once, because the writer has copies
    }
    checkpoint.finish();
    communicator.barrier();
    expect(num_files(options.directory) == 2 * (1 + size), "two are kept, each with its shards");

    Checkpoint again(options, communicator, c10::kCPU);
    std::vector<NamedTensor> tensors = make_tensors(0), loaded = make_own(communicator, 0);
    const auto saved = again.load(tensors, {}, loaded);
    expect(saved && saved->step == 3 && saved->has_own, "the newest step, and each rank's own");
    expect(saved->metadata == Metadata{{"note", "of rank 0"}}, "rank 0's metadata on each rank");
    expect(are_equal(tensors, make_tensors(3)), "its tensors, on each rank");
    expect(are_equal(loaded, own), "this rank's own");
    set_rng_state(c10::kCPU, loaded[1].tensor);
    expect(at::equal(at::rand({5}), drawn), "the generator goes on where it was");

    std::vector<NamedTensor> others{{"residual", at::full({7}, 9)}};
    expect(!again.load(tensors, {}, others)->has_own, "own tensors that don't fit stay");
    expect(at::all(others[0].tensor == 9).item<bool>(), "as they were");
    Checkpoint plain({.directory = options.directory}, communicator, c10::kCPU);
    tensors = make_tensors(0);
    expect(!plain.load(tensors)->has_own, "one that isn't sharded reads them");
    expect(are_equal(tensors, make_tensors(3)), "whole");
    const bool mine = communicator.rank() == communicator.size() - 1;
    const auto save = [&] { plain.save(4, {}, tensors, mine ? own : std::vector<NamedTensor>()); };
    expect_contains(error_of(save, ErrorCode::kInvalidArgument), "need CheckpointOptions::sharded");
  }
}

// Loads the checkpoints of run_sharded(), with another number of ranks.
void run_resharded(Communicator& communicator, const std::string& directory) {
  Checkpoint checkpoint({.directory = directory + "/async", .sharded = true}, communicator,
                        c10::kCPU);
  std::vector<NamedTensor> tensors = make_tensors(0), own = make_own(communicator, 0);
  expect(!checkpoint.load(tensors, {}, own)->has_own, "own tensors are of other ranks");
  expect(are_equal(tensors, make_tensors(3)), "the rest is whole");
  checkpoint.save(4, {}, tensors, own);
  checkpoint.finish();
  expect(checkpoint.load(tensors, {}, own)->has_own, "saved anew with so many ranks");
}

// Each rank's disk is its own. The step never counts, and every rank gets the reason.
void run_apart(Communicator& communicator, const std::string& directory) {
  const std::string mine = directory + "/" + std::to_string(communicator.rank());
  std::filesystem::create_directories(mine);
  Checkpoint checkpoint({.directory = mine, .sharded = true}, communicator, c10::kCPU);
  checkpoint.save(1, {}, make_tensors(1));
  expect_contains(error_of([&] { checkpoint.finish(); }, ErrorCode::kInvalidArgument),
                  "not all shards of step 1 are in " + directory +
                      "/0: a sharded checkpoint needs a "
                      "directory that all hosts see");
  expect(!checkpoint.load(make_tensors(1)), "there is none");
}

// A rank can't write its shard. Every rank gets the error, and the next save is well.
void run_shard_error(Communicator& communicator, const std::string& directory) {
  Checkpoint checkpoint({.directory = directory, .sharded = true}, communicator, c10::kCPU);
  std::vector<NamedTensor> own;
  if (communicator.rank() == 1) own.push_back({"c", at::zeros({1}, at::kComplexDouble)});
  const std::string error =
      error_of([&] { checkpoint.save(1, {}, make_tensors(1), own); }, ErrorCode::kUnsupported);
  expect_contains(error, "can't hold tensors of dtype ComplexDouble");
  checkpoint.save(1, {}, make_tensors(1));
  checkpoint.finish();
  expect(checkpoint.load(make_tensors(0))->step == 1, "a save after the error");
}

// A rank can't read its own tensors. Every rank gets the error, and no own tensor is changed.
void run_own_error(Communicator& communicator, const std::string& directory) {
  Checkpoint checkpoint({.directory = directory, .sharded = true}, communicator, c10::kCPU);
  const bool odd = communicator.rank() == communicator.size() - 1;
  std::vector<NamedTensor> own{{"c", at::ones({2})}};
  checkpoint.save(1, {}, make_tensors(1), own);
  fill(own, 5);
  std::vector<NamedTensor> wanted = own;
  if (odd) wanted.push_back({"d", at::zeros({1}, at::kComplexDouble)});
  const std::string error =
      error_of([&] { checkpoint.load(make_tensors(0), {}, wanted); }, ErrorCode::kUnsupported);
  expect_contains(error, "can't hold tensors of dtype ComplexDouble");
  expect(at::all(own[0].tensor == 5).item<bool>(), "unchanged");
  expect(checkpoint.load(make_tensors(0), {}, own)->has_own, "the ranks are still in step");
  expect(at::all(own[0].tensor == 1).item<bool>(), "loaded");
}

}  // namespace

int program(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string mode = argv[1], directory = argv[2];
  return run_worker("checkpoint_worker", mode, [&](Communicator& communicator) {
    if (mode == "roundtrip") {
      run_roundtrip(communicator, directory);
    } else if (mode == "refused") {
      run_refused(communicator, directory);
    } else if (mode == "error") {
      run_error(communicator, directory);
    } else if (mode == "alone") {
      run_alone(communicator, directory);
    } else if (mode == "unsavable") {
      run_unsavable(communicator, directory);
    } else if (mode == "sharded") {
      run_sharded(communicator, directory);
    } else if (mode == "resharded") {
      run_resharded(communicator, directory);
    } else if (mode == "apart") {
      run_apart(communicator, directory);
    } else if (mode == "shard_error") {
      run_shard_error(communicator, directory);
    } else if (mode == "own_error") {
      run_own_error(communicator, directory);
    } else {
      return false;
    }
    return true;
  });
}

}  // namespace checkpoint_worker
