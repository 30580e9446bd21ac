// SPDX-License-Identifier: Apache-2.0
#include "examples/train/options.h"

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/process_facts.h"

namespace ddprun::train {
namespace {

// "nan" and "inf" are numbers to CLI11, and "nan" passes every range. An empty text: fine.
std::string check_finite(const std::string& text) {
  return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : text + " is not a finite number";
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& exit_status) {
  Options options;
  std::string backend = to_string(options.backend);
  CLI::App app(
      "Trains PyTorch's MNIST example net on MNIST-format images, data-parallel.\n"
      "Under a launcher: ddprun --nproc_per_node=2 train; alone it trains as one process.",
      "train");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data_dir,
                 "Directory with MNIST's four files, gzipped or plain (default: shipped digits)")
      ->type_name("DIR")
      ->default_str("");
  app.add_option("--epochs", options.num_epochs, "Passes over the training images")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch-size", options.batch_size, "Images per step, shared by all ranks")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--lr", options.lr, "Adadelta's learning rate in the first epoch")
      ->check(CLI::PositiveNumber)
      ->check(check_finite, "");
  app.add_option("--gamma", options.gamma, "Factor on the learning rate after each epoch")
      ->check(CLI::PositiveNumber)
      ->check(check_finite, "");
  app.add_option("--seed", options.seed, "Seed of weights, order of images and dropout");
  app.add_option("--threads", options.num_threads,
                 "Compute threads per rank (0: OMP_NUM_THREADS, else cores / ranks on this node)")
      ->check(CLI::Range(0, 4096));
  app.add_option("--backend", backend, "Where gradients are averaged")
      ->check(CLI::IsMember({"auto", "host", "nccl"}));
  CLI::Option* checkpoint_dir =
      app.add_option("--checkpoint-dir", options.checkpoint_dir,
                     "Save here after each epoch and when asked to leave; go on from the newest")
          ->type_name("DIR")
          ->default_str("");
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "Save after every so many steps, too (0: no)")
      ->type_name("STEPS")
      ->check(CLI::Range(0, 1'000'000'000))
      ->needs(checkpoint_dir);
  app.add_option("--checkpoint-keep", options.checkpoint_keep, "Keep the newest so many")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000))
      ->needs(checkpoint_dir);
  app.add_option("--checkpoint-async", options.checkpoint_async,
                 "Write while the training goes on (yes, no)")
      ->type_name("yes|no")
      ->default_str("yes")
      ->needs(checkpoint_dir);
  app.add_option("--json", options.json_file, "Rank 0 writes a summary here")
      ->type_name("FILE")
      ->default_str("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_status =
        app.exit(error) == 0 ? static_cast<int>(ExitCode::kOk) : static_cast<int>(ExitCode::kUsage);
    return std::nullopt;
  }
  options.backend = *parse_backend_choice(backend);
  return options;
}

std::string shipped_data_dir() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path installed = fs::path(own_folder()).parent_path() / "share/ddprun/digits";
  for (const fs::path& candidate : {installed, fs::path(DDPRUN_SOURCE_DIGITS_DIR)}) {
    if (fs::is_directory(candidate, ignored)) return candidate.string();
  }
  throw Error(ErrorCode::kInvalidArgument,
              "the shipped digits are neither in " + installed.string() + " nor in " +
                  DDPRUN_SOURCE_DIGITS_DIR + ": give --data DIR with MNIST's four files");
}

}  // namespace ddprun::train
