// SPDX-License-Identifier: Apache-2.0
// safetensors_probe FILE: prints the decoded file. It has lines "NAME DTYPE [SHAPE] CRC32" in the
// file's order, then "KEY=VALUE" lines of the metadata. Exit status 1: it prints the error.
#include <iostream>

#include "common/crc32.h"
#include "common/error.h"
#include "worker_sdk/core/checkpoint/durable_file.h"
#include "worker_sdk/core/checkpoint/safetensors.h"

using namespace ddprun;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const std::string bytes = read_whole(argv[1]);
    const Safetensors file = decode_safetensors(bytes);
    for (const TensorBytes& each : file.tensors) {
      std::cout << each.name << ' ' << each.dtype << " [";
      for (std::size_t i = 0; i < each.shape.size(); ++i) {
        std::cout << (i > 0 ? "," : "") << each.shape[i];
      }
      std::cout << "] " << crc32(0, each.bytes) << '\n';
    }
    for (const auto& [key, value] : file.metadata) std::cout << key << '=' << value << '\n';
    return 0;
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
