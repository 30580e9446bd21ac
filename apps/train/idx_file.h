// SPDX-License-Identifier: Apache-2.0
// Reads MNIST's file format: IDX, gzipped or plain, and the directory that holds the four files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::train {

// Grey images with one label each.
struct ImageSet {
  std::size_t count = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::uint8_t> pixels;  // count × rows × columns, row by row
  std::vector<std::uint8_t> labels;  // count, each 0 … 9
};

struct DataSet {
  ImageSet train;
  ImageSet test;
};

inline constexpr int kNumClasses = 10;

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
// t10k-labels-idx1-ubyte from `directory`, each with or without ".gz". Throws
// Error(kInvalidArgument) that names the file and says what is wrong. It may be missing, not gzip,
// too short or not IDX, or have a label above 9. Numbers of images and labels, or the sizes of the
// images, may differ.
DataSet read_data_set(const std::string& directory);

// Returns the CRC-32 of all pixels and labels, by which image sets are told apart.
std::uint32_t checksum(const ImageSet& set);

}  // namespace ddprun::train
