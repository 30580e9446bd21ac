// SPDX-License-Identifier: Apache-2.0
// One rank of hooks_test.py: averages gradients from a file with each hook; no LibTorch.
//   hook_worker DIR COMPRESSION…
// reads   DIR/shapes          one line per parameter: its extents
//         DIR/gradients.RANK  float32, iteration by iteration, the parameters in their order
//         DIR/COMPRESSION.seeds  (optional) float32 for the hook's state, loaded at first
// writes  DIR/COMPRESSION.RANK        the averages, as the gradients
//         DIR/COMPRESSION.state.RANK  the hook's state after the last iteration
// prints  "buckets COMPRESSION COUNT PARAMETER:FIRST…" at first and after the rebuild, in elements,
//         "state COMPRESSION NAME COUNT", and "traffic COMPRESSION UNCOMPRESSED SENT"
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "common/error.h"
#include "worker_sdk/core/session.h"
#include "worker_sdk/ddp/hooks/compression.h"
#include "worker_sdk/ddp/reducer.h"

using namespace ddprun;

namespace {

std::vector<ParameterSpec> read_shapes(const std::string& path) {
  std::ifstream file(path);
  std::vector<ParameterSpec> parameters;
  for (std::string line; std::getline(file, line);) {
    std::istringstream extents(line);
    ParameterSpec parameter{.name = "p" + std::to_string(parameters.size()), .count = 1};
    for (std::int64_t extent; extents >> extent;) {
      parameter.shape.push_back(extent);
      parameter.count *= static_cast<std::size_t>(extent);
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

void print_buckets(const Reducer& reducer, const std::string& name) {
  for (std::size_t b = 0; b < reducer.num_buckets(); ++b) {
    const TensorView bucket = reducer.bucket(b);
    std::cout << "buckets " << name << " " << bucket.count;
    for (const std::size_t index : reducer.plan()[b]) {
      const auto* first = static_cast<const float*>(reducer.gradient(index).data);
      std::cout << " " << index << ":" << first - static_cast<const float*>(bucket.data);
    }
    std::cout << "\n";
  }
}

void run(Communicator& communicator, const std::string& directory, const std::string& name) {
  const std::string prefix = directory + "/" + name;
  const std::string rank = "." + std::to_string(communicator.rank());
  const std::vector<ParameterSpec> parameters = read_shapes(directory + "/shapes");
  const auto hook = make_comm_hook(parse_compression(name));
  Reducer reducer(communicator, parameters, {.first_bytes = 1024, .cap_bytes = 16384});
  reducer.set_hook(hook);
  print_buckets(reducer, name);
  if (std::ifstream seeds(prefix + ".seeds", std::ios::binary); seeds) {
    for (const HookTensor& tensor : hook->state()) {
      seeds.read(static_cast<char*>(tensor.view.data),
                 static_cast<std::streamsize>(tensor.view.size_bytes()));
    }
    if (!seeds) throw Error(ErrorCode::kInvalidArgument, prefix + ".seeds is too short");
  }
  std::ifstream gradients(directory + "/gradients" + rank, std::ios::binary);
  std::ofstream averages(prefix + rank, std::ios::binary);
  const auto bytes_of = [](const TensorView& view) {
    return static_cast<std::streamsize>(view.size_bytes());
  };
  while (gradients.peek() != std::ifstream::traits_type::eof()) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const TensorView view = reducer.gradient(i);
      gradients.read(static_cast<char*>(view.data), bytes_of(view));
    }
    for (std::size_t i = parameters.size(); i-- > 0;) reducer.mark_ready(i);
    reducer.finalize();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const TensorView view = reducer.gradient(i);
      averages.write(static_cast<const char*>(view.data), bytes_of(view));
    }
    if (!reducer.wants_rebuild()) continue;
    reducer.rebuild(reducer.first_arrival());
    for (std::size_t b = 0; b < reducer.num_buckets(); ++b) {
      const TensorView bucket = reducer.bucket(b);
      std::fill_n(static_cast<float*>(bucket.data), bucket.count, 0.0F);
    }
    print_buckets(reducer, name);
  }
  std::ofstream state(prefix + ".state" + rank, std::ios::binary);
  for (const HookTensor& tensor : hook->state()) {
    std::cout << "state " << name << " " << tensor.name << " " << tensor.view.count << "\n";
    state.write(static_cast<const char*>(tensor.view.data), bytes_of(tensor.view));
  }
  std::cout << "traffic " << name << " " << reducer.traffic().uncompressed_bytes << " "
            << reducer.traffic().sent_bytes << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto session = Session::from_env();
    const auto communicator = session->make_communicator(BackendChoice::kHost);
    for (int i = 2; i < argc; ++i) run(*communicator, argv[1], argv[i]);
    communicator->barrier();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "hook_worker: " << error.what() << std::endl;
    return 1;
  }
}
