// SPDX-License-Identifier: Apache-2.0
#include "apps/train/idx_file.h"

#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::train;
using ddprun::test::Contains;

namespace {

// A directory with two training images and one test image, which each case then damages.
class Fixture {
 public:
  Fixture() {
    write("train-images-idx3-ubyte", images(2));
    write("train-labels-idx1-ubyte", labels({3, 9}));
    write("t10k-images-idx3-ubyte", images(1));
    write("t10k-labels-idx1-ubyte", labels({0}));
  }

  static std::string images(unsigned char count, unsigned char side = 28) {
    std::string bytes{0, 0, 8, 3, 0, 0, 0, static_cast<char>(count)};
    for (int i = 0; i < 2; ++i) bytes += std::string{0, 0, 0, static_cast<char>(side)};
    return bytes + std::string(static_cast<std::size_t>(count) * side * side, '\x7f');
  }
  static std::string labels(const std::string& values) {
    return std::string{0, 0, 8, 1, 0, 0, 0, static_cast<char>(values.size())} + values;
  }
  static std::string labels(std::initializer_list<char> values) {
    return labels(std::string(values));
  }

  std::string path(const std::string& name) const { return directory_.path(name); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  void compress(const std::string& name, const std::string& bytes) const {
    const gzFile file = ::gzopen(path(name).c_str(), "wb");
    ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    ::gzclose(file);
  }
  void remove(const std::string& name) const { std::filesystem::remove(path(name)); }
  DataSet read() const { return read_data_set(directory_.path()); }

 private:
  test::TempDirectory directory_;
};

}  // namespace

TEST_CASE("idx: plain files give images and labels") {
  const DataSet data = Fixture().read();
  CHECK(data.train.count == 2);
  CHECK(data.train.rows == 28);
  CHECK(data.train.pixels.size() == 2 * 784);
  CHECK(data.train.labels == std::vector<std::uint8_t>{3, 9});
  CHECK(data.test.labels == std::vector<std::uint8_t>{0});
}

TEST_CASE("idx: gzipped files are read alike, and may be mixed with plain ones") {
  const Fixture f;
  f.remove("train-images-idx3-ubyte");
  f.compress("train-images-idx3-ubyte.gz", Fixture::images(2));
  CHECK(f.read().train.pixels[783] == 0x7f);
}

TEST_CASE("idx: the shipped digits are complete") {
  const DataSet data = read_data_set(DDPRUN_TEST_DIGITS_DIR);
  CHECK(data.train.count == 1500);
  CHECK(data.test.count == 297);
}

TEST_CASE("idx: a missing directory or file is named") {
  CHECK_THROWS_WITH(read_data_set("/nonexistent/mnist"), "/nonexistent/mnist: no such directory");
  const Fixture f;
  f.remove("t10k-labels-idx1-ubyte");
  CHECK_THROWS_WITH(f.read(), f.path("t10k-labels-idx1-ubyte") + "[.gz]: no such file");
}

TEST_CASE("idx: a link whose target is gone is named with it") {
  const Fixture f;
  const std::string file = f.path("t10k-labels-idx1-ubyte");
  f.remove("t10k-labels-idx1-ubyte");
  std::filesystem::create_symlink("/gone/labels", file);
  CHECK_THROWS_WITH(f.read(),
                    file + ": " + file + " is a link to /gone/labels, which does not exist");
  const std::string directory = f.path("elsewhere");
  std::filesystem::create_directory_symlink("/gone", directory);
  CHECK_THROWS_WITH(
      read_data_set(directory + "/mnist"),
      directory + "/mnist: " + directory + " is a link to /gone, which does not exist");
}

TEST_CASE("idx: a file that ends too early or too late says so") {
  const Fixture f;
  f.write("train-images-idx3-ubyte", Fixture::images(2).substr(0, 1000));
  CHECK_THROWS_WITH(f.read(),
                    Contains("train-images-idx3-ubyte: ends too early: 584 bytes missing"));
  f.write("train-images-idx3-ubyte", Fixture::images(2) + "x");
  CHECK_THROWS_WITH(f.read(), Contains("goes on after the elements"));
  f.write("train-images-idx3-ubyte", "");
  CHECK_THROWS_WITH(f.read(), Contains("ends too early: 4 bytes missing of its header"));
}

TEST_CASE("idx: a header that announces 4 GiB costs no memory that the file does not fill") {
  const Fixture f;
  const std::string header{0, 0, 8, 3, 0, 0x53, 0, 0, 0, 0, 0, 28, 0, 0, 0, 28};
  f.write("train-images-idx3-ubyte", header + std::string(1000, 'x'));
  CHECK_THROWS_WITH(f.read(), Contains("train-images-idx3-ubyte: ends too early: 4264") &&
                                  Contains(" bytes missing of its elements"));
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < 1024 * 1024);  // in KiB
}

TEST_CASE("idx: a gzipped file without the end of its checksum is short") {
  const Fixture f;
  f.remove("train-images-idx3-ubyte");
  f.compress("train-images-idx3-ubyte.gz", Fixture::images(2));
  const std::string path = f.path("train-images-idx3-ubyte.gz");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  CHECK_THROWS_WITH(f.read(), Contains("train-images-idx3-ubyte.gz: ends too early"));
}

TEST_CASE("idx: a path that can't be searched is named, with the reason") {
  const Fixture f;
  const std::string file = f.path("train-images-idx3-ubyte");
  CHECK_THROWS_WITH(read_data_set(file), file + ": no such directory");
  CHECK_THROWS_WITH(read_data_set(file + "/below"), Contains(file + "/below: "));
  const std::string loop = f.path("loop");
  std::filesystem::create_symlink(loop, loop);
  CHECK_THROWS_AS(read_data_set(loop), Error);
  f.remove("train-images-idx3-ubyte");
  std::filesystem::create_symlink(file, file);
  CHECK_THROWS_AS(f.read(), Error);
  CHECK_THROWS_WITH(f.read(), Contains(file));
}

TEST_CASE("idx: broken gzip data is told from a short file") {
  const Fixture f;
  f.remove("train-images-idx3-ubyte");
  f.compress("train-images-idx3-ubyte.gz", Fixture::images(2));
  std::fstream file(f.path("train-images-idx3-ubyte.gz"),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(14);
  file << "\xff\xff\xff\xff\xff\xff";
  file.close();
  CHECK_THROWS_WITH(f.read(), Contains("train-images-idx3-ubyte.gz: broken gzip data"));
}

TEST_CASE("idx: a file that is no IDX file, or another kind of one, is refused") {
  const Fixture f;
  f.write("train-labels-idx1-ubyte", "<html>not found</html>");
  CHECK_THROWS_WITH(f.read(), Contains("is not an IDX file of bytes"));
  f.write("train-labels-idx1-ubyte", Fixture::images(2));
  CHECK_THROWS_WITH(f.read(), Contains("has 3 dimensions, not 1"));
}

TEST_CASE("idx: labels must match the images, and be digits") {
  const Fixture f;
  f.write("train-labels-idx1-ubyte", Fixture::labels({1}));
  CHECK_THROWS_WITH(f.read(), Contains("has 1 labels for the 2 images of"));
  f.write("train-labels-idx1-ubyte", Fixture::labels({1, 10}));
  CHECK_THROWS_WITH(f.read(), Contains("label 1 is 10, not a digit"));
}

TEST_CASE("idx: images of another size, or none, are refused") {
  const Fixture f;
  f.write("train-images-idx3-ubyte", Fixture::images(2, 14));
  CHECK_THROWS_WITH(f.read(), Contains("images of 14 × 14 pixels; the net takes 28 × 28"));
  f.write("train-images-idx3-ubyte", Fixture::images(0));
  CHECK_THROWS_WITH(f.read(), Contains("is empty"));
}
