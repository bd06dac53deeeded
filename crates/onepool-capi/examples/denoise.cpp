// denoise MODEL DEVICE INPUT OUTPUT: as denoise.c, in C++17.
#include <fstream>
#include <iostream>

#include <onepool.hpp>

int main(int argc, char **argv) try {
    if (argc != 5) {
        return 2;
    }
    onepool::Options options;
    options.devices = {argv[2]};
    const auto session = onepool::Session::open(argv[1], options);

    const onepool::Region noisy(3 * 64 * 64 * sizeof(float)), clean(noisy.bytes());
    auto in = onepool::Memory::region("noisy", noisy).shape({1, 3, 64, 64});
    auto binding = session.bind({std::move(in)}, {onepool::Memory::region("clean", clean)}, ONEPOOL_STRICT_ON);
    const auto bytes = static_cast<std::streamsize>(noisy.bytes());
    std::ifstream(argv[3], std::ios::binary).read(noisy.write().as<char>().data(), bytes);
    binding.run();
    std::ofstream(argv[4], std::ios::binary).write(clean.read().as<char>().data(), bytes);

    for (const auto &verdict : binding.verdicts()) {
        std::cout << verdict.sentence << '\n';
    }
    return 0;
} catch (const onepool::Error &error) {
    std::cerr << onepool_status_name(error.status()) << ": " << error.what() << '\n';
    return 1;
}
