// SPDX-License-Identifier: Apache-2.0
#include "apps/train/idx_file.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>

#include "common/error.h"
#include "common/regular_file.h"
#include "common/text.h"

namespace ddprun::train {
namespace {

// IDX: two zero bytes, the type of the elements, the number of dimensions, each size big-endian.
constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kMaxElements = std::size_t{1} << 32;

[[noreturn]] void bad_file(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, path + ": " + what);
}

// A file read through zlib, which also reads plain files.
class Input {
 public:
  explicit Input(const std::string& path) : path_(path), file_(::gzopen(path.c_str(), "rb")) {
    if (!file_) bad_file(path, "can't open: " + errno_text(errno));
    ::gzbuffer(file_.get(), 1 << 17);
  }

  // Takes memory only as data comes, so that a header alone can't cost 4 GiB.
  std::vector<std::uint8_t> read_elements(std::size_t size) {
    constexpr std::size_t kStep = std::size_t{16} << 20;
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < size) {
      const std::size_t before = bytes.size(), step = std::min(kStep, size - before);
      if (bytes.capacity() < before + step) bytes.reserve(std::min(size, 2 * before + step));
      bytes.resize(before + step);
      read(bytes.data() + before, step, "elements", size - before - step);
    }
    return bytes;
  }

  // `more` is the number of bytes wanted after these, for the message.
  void read(void* data, std::size_t size, const char* what, std::size_t more = 0) {
    auto* next = static_cast<std::uint8_t*>(data);
    while (size > 0) {
      const auto chunk = static_cast<unsigned>(std::min<std::size_t>(size, 1 << 30));
      const int got = ::gzread(file_.get(), next, chunk);
      if (got < 0) bad_file(path_, "broken gzip data (" + zlib_message() + ")");
      if (got == 0)
        bad_file(path_, concat("ends too early: ", size + more, " bytes missing of its ", what));
      next += got;
      size -= static_cast<std::size_t>(got);
    }
  }

  void expect_end() {
    char extra = 0;
    const int got = ::gzread(file_.get(), &extra, 1);
    if (got < 0) bad_file(path_, "broken gzip data (" + zlib_message() + ")");
    int code = Z_OK;
    ::gzerror(file_.get(), &code);
    if (got == 0 && code == Z_BUF_ERROR) bad_file(path_, "ends too early: before its checksum");
    if (got > 0) bad_file(path_, "goes on after the elements that its header announces");
  }

  const std::string& path() const { return path_; }

 private:
  std::string zlib_message() const {
    int code = 0;
    const char* message = ::gzerror(file_.get(), &code);
    return code == Z_ERRNO ? errno_text(errno) : message;
  }

  struct Close {
    void operator()(gzFile file) const { ::gzclose(file); }
  };
  const std::string path_;
  const std::unique_ptr<gzFile_s, Close> file_;
};

std::uint32_t read_size(Input& input) {
  std::uint8_t bytes[4];
  input.read(bytes, sizeof bytes, "header");
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

struct Array {
  std::string path;
  std::vector<std::size_t> sizes;
  std::vector<std::uint8_t> bytes;
};

Array read_idx(const std::string& directory, const std::string& name, std::size_t num_dimensions) {
  const std::string plain = directory + "/" + name;
  std::error_code error;  // for example of a directory that can't be searched
  const bool is_plain = std::filesystem::exists(plain, error);
  if (!is_plain && !error && !std::filesystem::exists(plain + ".gz", error)) {
    for (const char* suffix : {"", ".gz"}) {
      if (const std::string link = dangling_link(plain + suffix); !link.empty()) {
        bad_file(plain + suffix, link);
      }
    }
    bad_file(plain + "[.gz]", "no such file");
  }
  if (error) bad_file(plain + "[.gz]", error.message());
  const std::string path = is_plain ? plain : plain + ".gz";
  // Opening a pipe would wait for a writer.
  if (!std::filesystem::is_regular_file(path, error)) bad_file(path, "is no regular file");
  Input input(path);
  Array array{.path = input.path(), .sizes = {}, .bytes = {}};

  std::uint8_t magic[4];
  input.read(magic, sizeof magic, "header");
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte) {
    bad_file(array.path, "is not an IDX file of bytes (it should begin with 00 00 08)");
  }
  if (magic[3] != num_dimensions) {
    bad_file(array.path, concat("has ", int{magic[3]}, " dimensions, not ", num_dimensions));
  }
  std::size_t num_elements = 1;
  for (std::size_t i = 0; i < num_dimensions; ++i) {
    array.sizes.push_back(read_size(input));
    if (array.sizes.back() == 0) bad_file(array.path, "is empty: a size in its header is 0");
    num_elements *= array.sizes.back();
    if (num_elements > kMaxElements) bad_file(array.path, "announces more than 4 GiB");
  }
  array.bytes = input.read_elements(num_elements);
  input.expect_end();
  return array;
}

ImageSet read_image_set(const std::string& directory, const std::string& prefix) {
  Array images = read_idx(directory, prefix + "-images-idx3-ubyte", 3);
  Array labels = read_idx(directory, prefix + "-labels-idx1-ubyte", 1);
  if (images.sizes[0] != labels.sizes[0]) {
    bad_file(labels.path, concat("has ", labels.sizes[0], " labels for the ", images.sizes[0],
                                 " images of ", images.path));
  }
  const auto wrong = std::find_if(labels.bytes.begin(), labels.bytes.end(),
                                  [](std::uint8_t label) { return label >= kNumClasses; });
  if (wrong != labels.bytes.end()) {
    bad_file(labels.path,
             concat("label ", wrong - labels.bytes.begin(), " is ", int{*wrong}, ", not a digit"));
  }
  return {.count = images.sizes[0],
          .rows = images.sizes[1],
          .columns = images.sizes[2],
          .pixels = std::move(images.bytes),
          .labels = std::move(labels.bytes)};
}

}  // namespace

DataSet read_data_set(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    if (const std::string link = dangling_link(directory); !link.empty()) bad_file(directory, link);
    const bool missing = !error || error == std::errc::no_such_file_or_directory;
    bad_file(directory, missing ? "no such directory" : error.message());
  }
  DataSet data{.train = read_image_set(directory, "train"),
               .test = read_image_set(directory, "t10k")};
  for (const ImageSet* set : {&data.train, &data.test}) {
    if (set->rows != 28 || set->columns != 28) {
      bad_file(directory, concat("images of ", set->rows, " × ", set->columns,
                                 " pixels; the net takes 28 × 28"));
    }
  }
  return data;
}

std::uint32_t checksum(const ImageSet& set) {
  const auto first = ::crc32_z(0, set.pixels.data(), set.pixels.size());
  return static_cast<std::uint32_t>(::crc32_z(first, set.labels.data(), set.labels.size()));
}

}  // namespace ddprun::train
